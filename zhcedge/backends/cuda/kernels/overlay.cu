// Boxes and labels drawn into the slots' NV12. Twin: backends/cpu/overlay.py, whose module docstring says what is
// drawn; equal to it byte for byte.
//
// The twin paints in an order; here every sample asks who painted it last: the first tag in order of score that covers
// it, else the first frame. So threads never write the same byte, and the result has no order to depend on. Blocks
// walk over tiles of 64 x 16 pixels and leave those that nothing touches. One thread owns 2 x 2 pixels.
#include "common.cuh"

#define COLUMNS 32
#define ROWS 8
#define THREADS (COLUMNS * ROWS)
#define INK_LUMA 16
#define NAME_CHARACTERS 24
#define PADDING_X 2
#define PADDING_Y 1
#define COLORS 10

__constant__ u8 PALETTE[COLORS][3] = {
    {155, 98, 74},  {157, 47, 185},  {164, 166, 76}, {184, 31, 165}, {152, 139, 189},
    {151, 176, 139}, {153, 153, 28}, {152, 99, 189}, {184, 61, 118}, {196, 128, 128},
};

struct Rect {
    int x0, y0, x1, y1;  // x1, y1 excluded

    __device__ bool has(int x, int y) const { return x >= x0 && x < x1 && y >= y0 && y < y1; }
    __device__ bool meets(const Rect& o) const { return x0 < o.x1 && o.x0 < x1 && y0 < o.y1 && o.y0 < y1; }
};

struct Mark {
    Rect box, tag;
    int color, characters;
};

// The atlas: u8 [95, height, width]; names: u8 [labels, 24] atlas indices; lengths: u8 [labels].
struct Text {
    const u8 *atlas, *names, *lengths;
    int glyph_width, glyph_height, scale;
};

#define SCORE_CHARACTERS 5  // a space and "0.87"
#define TEXT_BYTES 32       // NAME_CHARACTERS + SCORE_CHARACTERS, rounded up for wide reads

__device__ Mark mark_of(const Detection& d, const Text& text, int width) {
    Mark m;
    m.box.x0 = (int)floorf(d.box[0] + 0.5f);
    m.box.y0 = (int)floorf(d.box[1] + 0.5f);
    m.box.x1 = max((int)floorf(d.box[2] + 0.5f), m.box.x0 + 1);
    m.box.y1 = max((int)floorf(d.box[3] + 0.5f), m.box.y0 + 1);
    m.color = d.label % COLORS;
    m.characters = text.lengths[d.label] + SCORE_CHARACTERS;
    int tag_width = m.characters * text.glyph_width * text.scale + 2 * PADDING_X;
    int tag_height = text.glyph_height * text.scale + 2 * PADDING_Y;
    m.tag.x0 = max(min(m.box.x0, width - tag_width), 0);
    m.tag.y0 = m.box.y0 >= tag_height ? m.box.y0 - tag_height : m.box.y0;
    m.tag.x1 = m.tag.x0 + tag_width;
    m.tag.y1 = m.tag.y0 + tag_height;
    return m;
}

// A tag's characters as atlas indices: the name, a space, the score in hundredths.
__device__ void write_text(const Detection& d, const Text& text, int characters, u8* out) {
    const u64* name = (const u64*)(text.names + d.label * NAME_CHARACTERS);
    for (int i = 0; i < NAME_CHARACTERS / 8; i++) ((u64*)out)[i] = name[i];
    int hundredths = min(max((int)rintf(d.score * 100.0f), 0), 100);
    u8* score = out + characters - SCORE_CHARACTERS;
    score[0] = 0;
    score[1] = '0' - ' ' + hundredths / 100;
    score[2] = '.' - ' ';
    score[3] = '0' - ' ' + hundredths / 10 % 10;
    score[4] = '0' - ' ' + hundredths % 10;
}

__device__ __forceinline__ bool on_frame(const Rect& b, int thickness, int x, int y) {
    return b.has(x, y) &&
           (x < b.x0 + thickness || x >= b.x1 - thickness || y < b.y0 + thickness || y >= b.y1 - thickness);
}

__device__ bool touches(const Mark& m, const Rect& tile, int thickness) {
    if (m.tag.meets(tile)) return true;
    if (!m.box.meets(tile)) return false;
    // Not when the tile lies wholly inside the frame's hole.
    return tile.x0 < m.box.x0 + thickness || tile.x1 > m.box.x1 - thickness || tile.y0 < m.box.y0 + thickness ||
           tile.y1 > m.box.y1 - thickness;
}

// n / d for small n >= 0, given 1 / d: half a step away from every integer, so float rounding can't matter.
__device__ __forceinline__ int quotient(int n, float inverse) { return (int)((n + 0.5f) * inverse); }

__device__ __forceinline__ u8 tag_luma(const Mark& m, const u8* characters, const Text& text, int x, int y) {
    int background = PALETTE[m.color][0];
    int tx = x - m.tag.x0 - PADDING_X, ty = y - m.tag.y0 - PADDING_Y;
    int glyph_width = text.glyph_width * text.scale, glyph_height = text.glyph_height * text.scale;
    if (tx < 0 || ty < 0 || tx >= m.characters * glyph_width || ty >= glyph_height) return background;
    int position = quotient(tx, 1.0f / glyph_width);
    float inverse_scale = 1.0f / text.scale;
    int column = quotient(tx - position * glyph_width, inverse_scale), row = quotient(ty, inverse_scale);
    int ink = text.atlas[(characters[position] * text.glyph_height + row) * text.glyph_width + column];
    return (ink * INK_LUMA + (255 - ink) * background + 127) / 255;
}

// Paint the 2 x 2 pixels at chroma sample (cx, cy).
__device__ void paint(const Frame& f, const Text& text, const Mark* marks, const u8 (*characters)[TEXT_BYTES],
                      int count, int thickness, int cx, int cy) {
    Rect quad = {2 * cx, 2 * cy, min(2 * cx + 2, f.width), min(2 * cy + 2, f.height)};
    if (quad.x0 >= quad.x1 || quad.y0 >= quad.y1) return;
    int color = -1;
    bool is_drawn[4] = {false, false, false, false};
    u8 luma[4];
    for (int k = 0; k < count; k++) {
        const Mark& m = marks[k];
        if (!m.tag.meets(quad)) continue;
        if (color < 0) color = m.color;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int x = quad.x0 + (i & 1), y = quad.y0 + (i >> 1);
            if (is_drawn[i] || !m.tag.has(x, y)) continue;
            is_drawn[i] = true;
            luma[i] = tag_luma(m, characters[k], text, x, y);
        }
    }
    for (int k = 0; k < count; k++) {
        const Mark& m = marks[k];
        if (!m.box.meets(quad)) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int x = quad.x0 + (i & 1), y = quad.y0 + (i >> 1);
            if (x >= quad.x1 || y >= quad.y1 || !on_frame(m.box, thickness, x, y)) continue;
            if (color < 0) color = m.color;
            if (is_drawn[i]) continue;
            is_drawn[i] = true;
            luma[i] = PALETTE[m.color][0];
        }
    }
    if (color < 0) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int x = quad.x0 + (i & 1), y = quad.y0 + (i >> 1);
        if (is_drawn[i] && x < quad.x1 && y < quad.y1) ((u8*)(f.planes[0] + (u64)y * f.pitches[0]))[x] = luma[i];
    }
    u8* pair = (u8*)(f.planes[1] + (u64)cy * f.pitches[1]) + 2 * cx;
    pair[0] = PALETTE[color][1];
    pair[1] = PALETTE[color][2];
}

// Grid: x over tiles (walked over), y over frames; block 32 x 8.
extern "C" __global__ void __launch_bounds__(THREADS)
overlay(const Frame* frames, const Results* records, const u8* atlas, const u8* names, const u8* lengths,
        int glyph_width, int glyph_height) {
    __shared__ Mark marks[MAX_DETECTIONS];
    __shared__ __align__(8) u8 characters[MAX_DETECTIONS][TEXT_BYTES];
    __shared__ int warps[THREADS / 32];
    int thread = threadIdx.y * COLUMNS + threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const Frame& f = frames[blockIdx.y];
    const Results& results = records[blockIdx.y];
    // Read before it is known whether there are so many: one trip to memory instead of two.
    Detection detection = results.detections[thread];
    int detections = f.width > 0 ? results.count : 0;
    if (detections == 0) return;
    int scale = max(1, f.height / 900);
    int thickness = (f.height >= 720 ? 3 : 2) * scale;
    Text text = {atlas, names, lengths, glyph_width, glyph_height, scale};
    int across = (f.width + 2 * COLUMNS - 1) / (2 * COLUMNS), down = (f.height + 2 * ROWS - 1) / (2 * ROWS);
    Mark mine;
    if (thread < detections) mine = mark_of(detection, text, f.width);

    for (int tile = blockIdx.x; tile < across * down; tile += gridDim.x) {
        int left = tile % across * 2 * COLUMNS, top = tile / across * 2 * ROWS;
        Rect area = {left, top, left + 2 * COLUMNS, top + 2 * ROWS};
        bool is_touched = thread < detections && touches(mine, area, thickness);
        // Also the barrier after which the last tile's marks are no longer needed.
        if (__syncthreads_count(is_touched) == 0) continue;
        u32 ballot = __ballot_sync(0xffffffffu, is_touched);
        if (lane == 0) warps[warp] = __popc(ballot);
        __syncthreads();
        int rank = __popc(ballot & ((1u << lane) - 1)), count = 0;
        for (int w = 0; w < THREADS / 32; w++) {
            if (w == warp) rank += count;
            count += warps[w];
        }
        if (is_touched) {
            marks[rank] = mine;
            if (mine.tag.meets(area)) write_text(detection, text, mine.characters, characters[rank]);
        }
        __syncthreads();
        paint(f, text, marks, characters, count, thickness, left / 2 + threadIdx.x, top / 2 + threadIdx.y);
    }
}
