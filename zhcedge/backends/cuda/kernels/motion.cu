// How much of a picture moves: a grid of luma samples against their running means. Twin: backends/cpu/motion.py.
//
// One block; a thread works on every 256th point. The count goes to mapped memory with the ticket of the call, in one
// store of eight bytes, so that the host sees either both or none.
#include "common.cuh"

#define COLUMNS 64
#define ROWS 36
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
motion(Frame frame, float* means, int ticket, float weight, float threshold, int2* result) {
    int moved = 0;
    for (int point = threadIdx.x; point < COLUMNS * ROWS; point += THREADS) {
        int column = point % COLUMNS, row = point / COLUMNS;
        u64 x = (u64)(2 * column + 1) * frame.width / (2 * COLUMNS), y = (u64)(2 * row + 1) * frame.height / (2 * ROWS);
        float value = *(const u8*)(frame.planes[0] + y * frame.pitches[0] + x);
        float mean = ticket == 1 ? value : means[point], change = value - mean;
        moved += fabsf(change) > threshold;
        means[point] = __fadd_rn(mean, __fmul_rn(change, weight));  // not fused: the twin rounds twice
    }
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, moved);
    __syncthreads();
    if (threadIdx.x == 0) *result = make_int2(total, ticket);
}
