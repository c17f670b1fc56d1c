// A decoder's surface, I420 or P010 -> the slot's 8-bit NV12 of the same size. One thread makes one 2x2 block: four
// luma samples and one chroma pair. NV12 to NV12 goes by 2-D copies instead. Twin: backends/cpu/ingest.py.
//
// The source and the slot come as two Frames by value: ingest runs outside the graph, once a frame.
#include "common.cuh"

// The nearest 8-bit value of a 16-bit sample that counts as x / 256.
__device__ __forceinline__ u8 narrow(u32 x) { return (u8)min((x + 128u) >> 8, 255u); }

__device__ __forceinline__ u8 sample_at(u64 plane, int pitch, int column, int row, bool is_wide) {
    const u8* start = (const u8*)(plane + (u64)row * pitch);
    return is_wide ? narrow(((const u16*)start)[column]) : start[column];
}

extern "C" __global__ void __launch_bounds__(256) ingest(Frame source, Frame target) {
    int cx = blockIdx.x * blockDim.x + threadIdx.x, cy = blockIdx.y * blockDim.y + threadIdx.y;
    if (2 * cx >= target.width || 2 * cy >= target.height) return;
    bool is_wide = source.format == P010, is_planar = source.format == I420;
    for (int i = 0; i < 4; i++) {
        int x = 2 * cx + (i & 1), y = 2 * cy + (i >> 1);
        if (x >= target.width || y >= target.height) continue;
        u8* luma = (u8*)(target.planes[0] + (u64)y * target.pitches[0]) + x;
        *luma = sample_at(source.planes[0], source.pitches[0], x, y, is_wide);
    }
    u8* chroma = (u8*)(target.planes[1] + (u64)cy * target.pitches[1]) + 2 * cx;
    if (is_planar) {
        chroma[0] = sample_at(source.planes[1], source.pitches[1], cx, cy, false);
        chroma[1] = sample_at(source.planes[2], source.pitches[2], cx, cy, false);
    } else {
        chroma[0] = sample_at(source.planes[1], source.pitches[1], 2 * cx, cy, is_wide);
        chroma[1] = sample_at(source.planes[1], source.pitches[1], 2 * cx + 1, cy, is_wide);
    }
}
