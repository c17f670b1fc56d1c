// Privacy masks: what a slot's mask hides becomes black, before the overlay draws. Twin: Canvas.hide of
// backends/cpu/overlay.py; equal to it byte for byte.
//
// A mask has one byte for 2 x 2 pixels and one chroma pair. A thread reads four of them at once; where all four are
// hidden, which is nearly everywhere that anything is, it writes 8 bytes at a time.
#include "common.cuh"

#define NEUTRAL 128  // U and V of every grey

__device__ __forceinline__ u8* at(const Frame& f, int plane, int row, int column) {
    return (u8*)(f.planes[plane] + (u64)row * f.pitches[plane]) + column;
}

__device__ __forceinline__ void hide_block(const Frame& f, int cx, int cy, u8 black) {
    for (int i = 0; i < 4; i++) {
        int x = 2 * cx + (i & 1), y = 2 * cy + (i >> 1);
        if (x < f.width && y < f.height) *at(f, 0, y, x) = black;
    }
    u8* pair = at(f, 1, cy, 2 * cx);
    pair[0] = pair[1] = NEUTRAL;
}

// Grid: x walks over the mask, y over frames; block of 256. A frame without a mask costs one read.
extern "C" __global__ void __launch_bounds__(256) mask(const Frame* frames) {
    const Frame& f = frames[blockIdx.y];
    if (f.mask == 0 || f.width == 0 || !f.is_drawn) return;
    int rows = (f.height + 1) / 2, words = ((f.width + 1) / 2 + 3) / 4;
    u8 black = f.is_full_range ? 0 : 16;
    bool is_aligned = ((f.planes[0] | f.planes[1] | (u64)f.pitches[0] | (u64)f.pitches[1]) & 7) == 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * words; i += gridDim.x * blockDim.x) {
        int cy = i / words, word = i - cy * words;
        u32 hidden = __ldg((const u32*)(f.mask + (u64)cy * f.mask_pitch) + word);
        if (hidden == 0) continue;
        bool is_whole = __vcmpeq4(hidden, 0) == 0 && 8 * word + 8 <= f.width && 2 * cy + 2 <= f.height;
        if (is_whole && is_aligned) {
            u64 luma = black * 0x0101010101010101ull;
            *(u64*)at(f, 0, 2 * cy, 8 * word) = luma;
            *(u64*)at(f, 0, 2 * cy + 1, 8 * word) = luma;
            *(u64*)at(f, 1, cy, 8 * word) = NEUTRAL * 0x0101010101010101ull;
            continue;
        }
        for (int k = 0; k < 4; k++)  // the padding of a row of the mask is 0
            if (hidden >> 8 * k & 255) hide_block(f, 4 * word + k, cy, black);
    }
}
