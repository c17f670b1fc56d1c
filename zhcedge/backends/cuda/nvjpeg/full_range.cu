// NV12 of any pitch, matrix and range -> NV12 as JPEG means it (JFIF: BT.601, full range), rows tight and even.
// One thread makes one 2x2 block. Chroma keeps its place: JFIF's is centred and video's left-sited, a shift of a
// quarter of a luma pixel that no viewer of a snapshot sees.
typedef unsigned char u8;
typedef unsigned long long u64;

__device__ __forceinline__ u8 to_byte(float value) { return (u8)fminf(fmaxf(rintf(value), 0.f), 255.f); }

extern "C" __global__ void __launch_bounds__(256) full_range(
    u64 luma, int luma_pitch, u64 chroma, int chroma_pitch, u64 out_luma, u64 out_chroma, int out_pitch, int width,
    int height, float black, float y_y, float y_b, float y_r, float b_b, float b_r, float r_b, float r_r) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (2 * column >= width || 2 * row >= height) return;
    const u8* from = (const u8*)(chroma + (u64)row * chroma_pitch) + 2 * column;
    float b = from[0] - 128.f, r = from[1] - 128.f;
    u8* to = (u8*)(out_chroma + (u64)row * out_pitch) + 2 * column;
    to[0] = to_byte(b_b * b + b_r * r + 128.f);
    to[1] = to_byte(r_b * b + r_r * r + 128.f);
    float tint = y_b * b + y_r * r;
    for (int y = 2 * row; y < min(2 * row + 2, height); y++)
        for (int x = 2 * column; x < min(2 * column + 2, width); x++)
            ((u8*)(out_luma + (u64)y * out_pitch))[x] =
                to_byte(y_y * (((const u8*)(luma + (u64)y * luma_pitch))[x] - black) + tint);
}
