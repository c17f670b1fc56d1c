// Surface -> letterboxed, normalised RGB or BGR tensor, float or half, in one pass over the output. Twin: backends/cpu/letterbox.py.
//
// Grid: x over the model's input in steps of 64 columns, y in steps of 32 rows, z over the frames of the batch; block
// 32 x 8. A thread makes eight pixels: two columns 32 apart in four rows. Taps of rows and the colour matrix are worked
// out once a block, taps of columns once a thread; neighbouring threads write neighbouring floats.
#include "common.cuh"

#define COLUMNS 32
#define COLUMNS_A_THREAD 2
#define ROW_THREADS 8
#define ROWS_A_BLOCK 32

// Where a pixel samples along one axis: in luma (or RGB), and in chroma.
struct Taps {
    Tap luma, chroma;
};

// Taps of pixel i of `scaled` pixels over `size` source pixels: (i + 0.5) * size / scaled - 0.5, as a fraction over
// 2 * scaled and clamped to the picture. Chroma is left-sited: its column c lies at luma 2c, its row r at luma 2r + 0.5
// (core/geometry.py).
__device__ __forceinline__ int position(int i, int scaled, int size) {
    return max(0, min((2 * i + 1) * size - scaled, (size - 1) * 2 * scaled));
}
__device__ __forceinline__ Taps column_taps(int i, int scaled, int size) {
    int x = position(i, scaled, size);
    return {tap_at(x, 2 * scaled, size), tap_at(x, 4 * scaled, (size + 1) / 2)};
}
__device__ __forceinline__ Taps row_taps(int i, int scaled, int size) {
    int y = position(i, scaled, size);
    return {tap_at(y, 2 * scaled, size), tap_at(2 * y - 2 * scaled, 8 * scaled, (size + 1) / 2)};
}

// R, G or B as weights of Y, U, V (or of itself) on 0..255, and a constant; the model's scale included.
struct Color {
    float first, second, third, constant;
};

// Y'CbCr to R'G'B', ITU-R BT.601-7 and BT.709-6; limited range is 16..235 and 16..240.
__device__ Color color_row(const Frame& f, int row, float scale) {
    if (f.format == RGB24) return {row == 0 ? scale : 0.0f, row == 1 ? scale : 0.0f, row == 2 ? scale : 0.0f, 0.0f};
    float kr = f.is_bt709 ? 0.2126f : 0.299f, kb = f.is_bt709 ? 0.0722f : 0.114f, kg = 1.0f - kr - kb;
    float y = f.is_full_range ? scale : scale * (255.0f / 219.0f);
    float gain = f.is_full_range ? scale : scale * (255.0f / 224.0f);
    float u = gain * (row == 0 ? 0.0f : row == 1 ? -2.0f * kb * (1.0f - kb) / kg : 2.0f * (1.0f - kb));
    float v = gain * (row == 0 ? 2.0f * (1.0f - kr) : row == 1 ? -2.0f * kr * (1.0f - kr) / kg : 0.0f);
    return {y, u, v, -(f.is_full_range ? 0.0f : 16.0f) * y - 128.0f * (u + v)};
}

// Y, U, V (or R, G, B) on 0..255 of one pixel; `rows` are those of each plane.
template <int FORMAT>
__device__ __forceinline__ void sample_picture(const Rows* rows, const Taps& x, float* out) {
    if (FORMAT == RGB24) {
        for (int i = 0; i < 3; i++) out[i] = sample<u8>(rows[0], x.luma, 3, i);
    } else if (FORMAT == P010) {  // ten bits at the top of sixteen: as 8-bit values with a fraction that is x / 256
        out[0] = sample<u16>(rows[0], x.luma);
        sample_pair<ushort2>(rows[1], x.chroma, out + 1);
        for (int i = 0; i < 3; i++) out[i] *= 1.0f / 256.0f;
    } else if (FORMAT == NV12) {
        out[0] = sample<u8>(rows[0], x.luma);
        sample_pair<uchar2>(rows[1], x.chroma, out + 1);
    } else {
        out[0] = sample<u8>(rows[0], x.luma);
        for (int i = 1; i < 3; i++) out[i] = sample<u8>(rows[i], x.chroma);
    }
}

__device__ __forceinline__ void put(float* out, float value) { *out = value; }
__device__ __forceinline__ void put(u16* out, float value) {  // half precision: rounded to nearest, halves to even
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*out) : "f"(value));
}

template <int FORMAT, typename T>
__device__ __forceinline__ void scale_block(
    const Frame& f, const Taps* row_table, const Color* colors, T* tensor, int width, int height, float scale,
    float pad) {
    int first = blockIdx.x * COLUMNS * COLUMNS_A_THREAD + threadIdx.x;
    Taps columns[COLUMNS_A_THREAD];
    for (int i = 0; i < COLUMNS_A_THREAD; i++)
        columns[i] = column_taps(first + i * COLUMNS - f.box_left, f.box_width, f.width);
    u64 plane = (u64)width * height;
#pragma unroll 1
    for (int local = threadIdx.y; local < ROWS_A_BLOCK; local += ROW_THREADS) {
        int y = blockIdx.y * ROWS_A_BLOCK + local, row = y - f.box_top;
        if (y >= height) return;
        bool is_row_inside = row >= 0 && row < f.box_height;
        const Taps& taps = row_table[local];
        Rows rows[3];
        rows[0] = rows_of(f.planes[0], f.pitches[0], taps.luma);
        if (FORMAT != RGB24) rows[1] = rows_of(f.planes[1], f.pitches[1], taps.chroma);
        if (FORMAT == I420) rows[2] = rows_of(f.planes[2], f.pitches[2], taps.chroma);
        T* out = tensor + blockIdx.z * 3 * plane + (u64)y * width;
#pragma unroll
        for (int i = 0; i < COLUMNS_A_THREAD; i++) {
            int x = first + i * COLUMNS, column = x - f.box_left;
            if (x >= width) continue;
            float rgb[3] = {pad, pad, pad};
            if (is_row_inside && column >= 0 && column < f.box_width) {
                float s[3];
                sample_picture<FORMAT>(rows, columns[i], s);
                for (int c = 0; c < 3; c++) {
                    Color k = colors[c];
                    float value = k.first * s[0] + k.second * s[1] + k.third * s[2] + k.constant;
                    rgb[c] = fminf(fmaxf(value, 0.0f), 255.0f * scale);
                }
            }
            for (int c = 0; c < 3; c++) put(out + c * plane + x, rgb[c]);
        }
    }
}

template <typename T>
__device__ __forceinline__ void scale_any(
    const Frame& f, const Taps* rows, const Color* colors, T* tensor, int width, int height, float scale, float pad) {
    switch (f.format) {
        case NV12: return scale_block<NV12>(f, rows, colors, tensor, width, height, scale, pad);
        case I420: return scale_block<I420>(f, rows, colors, tensor, width, height, scale, pad);
        case P010: return scale_block<P010>(f, rows, colors, tensor, width, height, scale, pad);
        default: return scale_block<RGB24>(f, rows, colors, tensor, width, height, scale, pad);
    }
}

extern "C" __global__ void __launch_bounds__(COLUMNS* ROW_THREADS)
letterbox(const Frame* frames, void* tensor, int width, int height, float scale, float pad, int is_half, int is_bgr) {
    __shared__ Taps rows[ROWS_A_BLOCK];
    __shared__ Color colors[3];
    __shared__ Frame f;  // shared, not local: eight pixels in flight leave no registers for it
    int thread = threadIdx.y * COLUMNS + threadIdx.x;
    if (thread < sizeof(Frame) / sizeof(int)) ((int*)&f)[thread] = ((const int*)(frames + blockIdx.z))[thread];
    __syncthreads();
    if (thread == 0 && f.width == 0) {  // an empty descriptor: nothing but border
        f.width = f.height = f.box_width = f.box_height = 1;
        f.box_left = width;
    }
    __syncthreads();
    if (threadIdx.y == 0)
        rows[threadIdx.x] = row_taps(blockIdx.y * ROWS_A_BLOCK + threadIdx.x - f.box_top, f.box_height, f.height);
    if (threadIdx.y == 1 && threadIdx.x < 3)
        colors[threadIdx.x] = color_row(f, is_bgr ? 2 - threadIdx.x : threadIdx.x, scale);
    __syncthreads();
    if (is_half)
        scale_any(f, rows, colors, (u16*)tensor, width, height, scale, pad);
    else
        scale_any(f, rows, colors, (float*)tensor, width, height, scale, pad);
}
