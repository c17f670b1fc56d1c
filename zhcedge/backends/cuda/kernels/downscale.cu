// NV12 -> smaller NV12 by area averaging, for snapshots and previews. One thread makes one 2x2 block of the output.
// Each output sample is the mean of the source samples whose centres it covers, at least one; sums are integers, so
// the result does not depend on the order of threads. Frames by value: it runs outside the graph, on demand.
#include "common.cuh"

__device__ __forceinline__ u8 mean_of(
    u64 plane, int pitch, int x, int y, int width, int height, int from_width, int from_height, int stride, int offset) {
    int x0 = (int)((long long)x * from_width / width), x1 = (int)((long long)(x + 1) * from_width / width);
    int y0 = (int)((long long)y * from_height / height), y1 = (int)((long long)(y + 1) * from_height / height);
    x1 = max(x1, x0 + 1);
    y1 = max(y1, y0 + 1);
    u32 sum = 0, count = (u32)(x1 - x0) * (u32)(y1 - y0);
    for (int j = y0; j < y1; j++) {
        const u8* row = (const u8*)(plane + (u64)j * pitch);
        for (int i = x0; i < x1; i++) sum += row[i * stride + offset];
    }
    return (u8)((sum + count / 2) / count);
}

extern "C" __global__ void __launch_bounds__(256) downscale(Frame source, Frame target) {
    int cx = blockIdx.x * blockDim.x + threadIdx.x, cy = blockIdx.y * blockDim.y + threadIdx.y;
    if (2 * cx >= target.width || 2 * cy >= target.height) return;
    for (int dy = 0; dy < 2; dy++)
        for (int dx = 0; dx < 2; dx++) {
            int x = 2 * cx + dx, y = 2 * cy + dy;
            if (x >= target.width || y >= target.height) continue;
            ((u8*)(target.planes[0] + (u64)y * target.pitches[0]))[x] = mean_of(
                source.planes[0], source.pitches[0], x, y, target.width, target.height, source.width, source.height, 1, 0);
        }
    u8* chroma = (u8*)(target.planes[1] + (u64)cy * target.pitches[1]) + 2 * cx;
    for (int i = 0; i < 2; i++)
        chroma[i] = mean_of(
            source.planes[1], source.pitches[1], cx, cy, (target.width + 1) / 2, (target.height + 1) / 2,
            (source.width + 1) / 2, (source.height + 1) / 2, 2, i);
}
