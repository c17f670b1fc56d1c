// How bright and how detailed a picture is, cell by cell. Definition: core/picture.py; twin: backends/cpu/picture.py.
//
// One block a cell, one thread a sample. Each cell's sums go to mapped memory with the ticket of the call, in one store
// of eight bytes: the host has the whole picture once every cell shows the ticket.
#include "common.cuh"

#define COLUMNS 16
#define ROWS 9
#define POINTS 12

extern "C" __global__ void __launch_bounds__(POINTS * POINTS)
picture(Frame frame, int ticket, u64* result) {
    u64 column = blockIdx.x % COLUMNS * POINTS + threadIdx.x % POINTS;
    u64 row = blockIdx.x / COLUMNS * POINTS + threadIdx.x / POINTS;
    u64 x = (2 * column + 1) * frame.width / (2 * COLUMNS * POINTS);
    u64 y = (2 * row + 1) * frame.height / (2 * ROWS * POINTS);
    u64 right = min(x + 1, (u64)frame.width - 1), below = min(y + 1, (u64)frame.height - 1);
    const u8* luma = (const u8*)frame.planes[0];
    int here = luma[y * frame.pitches[0] + x];
    int change = abs(here - luma[y * frame.pitches[0] + right]) + abs(here - luma[below * frame.pitches[0] + x]);
    __shared__ int total, detail;
    if (threadIdx.x == 0) total = detail = 0;
    __syncthreads();
    atomicAdd(&total, here);
    atomicAdd(&detail, change);
    __syncthreads();
    if (threadIdx.x == 0) result[blockIdx.x] = (u64)ticket << 40 | (u64)detail << 20 | (u64)total;
}
