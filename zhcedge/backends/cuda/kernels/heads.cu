// Any head's output, float or half -> [4 + classes, anchors] float32, YOLOv8's layout, which detect.cu reads. Twin:
// backends/cpu/heads.py, whose module docstring gives the rules; equal to it bit for bit.
//
// One pass over the output. Rows become columns by way of shared memory, so that both sides move 128 bytes a warp.
#include "common.cuh"

#define TILE 32
#define ROWS 8  // threads of a block along the other axis

enum Head { ANCHOR_FREE = 0, ANCHOR_FREE_ROWS = 1, OBJECTNESS = 2, OBJECTNESS_COLUMNS = 3, END_TO_END = 4 };

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Row `row` of the result for box `k`: centre and size for the first four, then a score for each class.
template <typename T>
__device__ __forceinline__ float end_to_end(const T* input, int row, int k) {
    const T* box = input + 6 * (u64)k;
    if (row >= 4) return rintf(widen(box[5])) == (float)(row - 4) ? widen(box[4]) : 0.0f;
    float low = widen(box[row & 1]), high = widen(box[2 + (row & 1)]);
    return row < 2 ? (low + high) * 0.5f : high - low;
}

template <typename T>
__device__ __forceinline__ void rewrite(const T* input, float* output, int classes, int anchors, int head) {
    __shared__ float tile[TILE][TILE + 1];  // one more: a column of it lies in 32 different banks
    bool is_rows = head == ANCHOR_FREE_ROWS || head == OBJECTNESS;
    bool has_objectness = head == OBJECTNESS || head == OBJECTNESS_COLUMNS;
    int values = 4 + classes + has_objectness;
    int first_anchor = blockIdx.x * TILE, first_value = blockIdx.y * TILE;
    if (is_rows) {
        int value = first_value + threadIdx.x;
        for (int local = threadIdx.y; local < TILE; local += ROWS) {
            int anchor = first_anchor + local;
            if (anchor < anchors && value < values) tile[local][threadIdx.x] = widen(input[(u64)anchor * values + value]);
        }
        __syncthreads();
    }
    int anchor = first_anchor + threadIdx.x;
    if (anchor >= anchors) return;
    float objectness = 1.0f;
    if (has_objectness) objectness = widen(input[is_rows ? (u64)anchor * values + 4 : 4 * (u64)anchors + anchor]);
    for (int local = threadIdx.y; local < TILE; local += ROWS) {
        int value = first_value + local, row = value;
        if (value >= values) return;
        float x;
        if (head == END_TO_END)
            x = end_to_end(input, value, anchor);
        else if (is_rows)
            x = tile[threadIdx.x][local];
        else
            x = widen(input[(u64)value * anchors + anchor]);
        if (has_objectness) {
            if (value == 4) continue;
            if (value > 4) {
                x *= objectness;
                row = value - 1;
            }
        }
        output[(u64)row * anchors + anchor] = x;
    }
}

// Grid: x over anchors and y over values in steps of 32, z over frames; block 32 x 8. `inputs` [frames] of the head's
// shape, `outputs` [frames, 4 + classes, anchors].
extern "C" __global__ void __launch_bounds__(TILE* ROWS)
heads(const void* inputs, float* outputs, int classes, int anchors, int head, int is_half) {
    u64 values = head == END_TO_END ? 6 : 4 + classes + (head == OBJECTNESS || head == OBJECTNESS_COLUMNS);
    u64 start = blockIdx.z * values * anchors;
    float* output = outputs + blockIdx.z * (u64)(4 + classes) * anchors;
    if (is_half)
        rewrite((const u16*)inputs + start, output, classes, anchors, head);
    else
        rewrite((const float*)inputs + start, output, classes, anchors, head);
}
