// Boxes and labels drawn into the slots' NV12. Twin: backends/cpu/overlay.py, whose module docstring says what is
// drawn; equal to it byte for byte.
//
// The twin paints in an order; here every sample asks who painted it last: the first tag in order of score that covers
// it, else the first frame. So threads never write the same byte, and the result has no order to depend on.
//
// Work is what is painted, not the picture: the cells (4 x 2 pixels and their two chroma samples) of every mark's frame
// and tag, two blocks a mark. A mark paints its own pixels less those that others take from it; who can is listed once
// a block, so that a cell compares itself with a few rectangles, and stores a row of four pixels at once.
#include "common.cuh"

#define THREADS MAX_DETECTIONS  // a detection each
#define SLICES 2                // blocks that share a mark's cells
#define INK_LUMA 16
#define NAME_CHARACTERS 24
#define SCORE_CHARACTERS 5  // a space and "0.87"
#define TEXT_BYTES 32       // NAME_CHARACTERS + SCORE_CHARACTERS, rounded up for wide writes
#define PADDING_X 2
#define PADDING_Y 1
#define COLORS 10

__constant__ u8 PALETTE[COLORS][3] = {
    {155, 98, 74},  {157, 47, 185},  {164, 166, 76}, {184, 31, 165}, {152, 139, 189},
    {151, 176, 139}, {153, 153, 28}, {152, 99, 189}, {184, 61, 118}, {196, 128, 128},
};

struct __align__(16) Rect {
    int x0, y0, x1, y1;  // x1, y1 excluded

    __device__ bool meets(const Rect& o) const { return x0 < o.x1 && o.x0 < x1 && y0 < o.y1 && o.y0 < y1; }
    __device__ bool holds(const Rect& o) const { return o.x0 >= x0 && o.x1 <= x1 && o.y0 >= y0 && o.y1 <= y1; }
    __device__ int width() const { return max(x1 - x0, 0); }
    __device__ int height() const { return max(y1 - y0, 0); }
    __device__ int size() const { return width() * height(); }
    __device__ Rect within(const Rect& o) const {
        return {max(x0, o.x0), max(y0, o.y0), min(x1, o.x1), min(y1, o.y1)};
    }
    __device__ Rect shrunk(int by) const { return {x0 + by, y0 + by, x1 - by, y1 - by}; }
    // Outwards and inwards to whole 2 x 2 pixels: marks that share such a square share its chroma.
    __device__ Rect wide() const { return {x0 & ~1, y0 & ~1, (x1 + 1) & ~1, (y1 + 1) & ~1}; }
    __device__ Rect narrow() const { return {(x0 + 1) & ~1, (y0 + 1) & ~1, x1 & ~1, y1 & ~1}; }
    // In cells: those that it touches, and those wholly inside.
    __device__ Rect touched() const { return {x0 >> 2, y0 >> 1, (x1 + 3) >> 2, (y1 + 1) >> 1}; }
    __device__ Rect inside() const { return {(x0 + 3) >> 2, (y0 + 1) >> 1, x1 >> 2, y1 >> 1}; }
};

// The atlas: u8 [95, height, width]. `scale` repeats its pixels; `width` and `height` are a glyph's in the picture.
struct Glyphs {
    const u8* atlas;
    int atlas_width, atlas_height, scale, width, height;
};

struct Target {
    u8 *luma, *chroma;
    int luma_pitch, chroma_pitch;
    Rect picture;
    bool is_wide;  // cells begin at addresses that take 4 bytes at once
};

// What a block knows of its frame's marks, best first; then, of the mark in work, what takes pixels from it.
struct Scene {
    Rect boxes[MAX_DETECTIONS], tags[MAX_DETECTIONS];
    u8 colors[MAX_DETECTIONS], lengths[MAX_DETECTIONS];
    __align__(8) u8 texts[MAX_DETECTIONS][TEXT_BYTES];  // atlas indices
    Rect over_tag[MAX_DETECTIONS];                      // better tags
    Rect tags_over[MAX_DETECTIONS], frames_over[MAX_DETECTIONS];  // the frame: all tags, better boxes
    int over_tag_count, tags_over_count, frames_over_count;
};

// The mark in work, in registers: a thread's stores could be to the scene, for all that the compiler knows.
struct Mark {
    Rect box, tag;
    int color, characters, over_tag_count, tags_over_count, frames_over_count;
    const u8* text;

    __device__ Mark(const Scene& s, int k)
        : box(s.boxes[k]), tag(s.tags[k]), color(s.colors[k]), characters(s.lengths[k]),
          over_tag_count(s.over_tag_count), tags_over_count(s.tags_over_count), frames_over_count(s.frames_over_count),
          text(s.texts[k]) {}
};

// n / d for small n >= 0, given 1 / d: half a step away from every integer, so float rounding can't matter.
__device__ __forceinline__ int quotient(int n, float inverse) { return (int)((n + 0.5f) * inverse); }

// -- marks -----------------------------------------------------------------------------------------------------
// Mark `k` into the scene. names: u8 [labels, 24] atlas indices; lengths: u8 [labels].
__device__ __forceinline__ void lay_out(Scene& s, int k, const Detection& d, const u8* names, const u8* lengths,
                                        const Glyphs& glyphs, int width) {
    const u64* name = (const u64*)(names + d.label * NAME_CHARACTERS);
    u64 parts[] = {name[0], name[1], name[2]};  // all reads before the first write: one trip to memory
    int length = lengths[d.label];
#pragma unroll
    for (int i = 0; i < NAME_CHARACTERS / 8; i++) ((u64*)s.texts[k])[i] = parts[i];
    int hundredths = min(max((int)rintf(d.score * 100.0f), 0), 100);
    u8* score = s.texts[k] + length;
    score[0] = 0;
    score[1] = '0' - ' ' + hundredths / 100;
    score[2] = '.' - ' ';
    score[3] = '0' - ' ' + hundredths / 10 % 10;
    score[4] = '0' - ' ' + hundredths % 10;

    Rect box = {(int)floorf(d.box[0] + 0.5f), (int)floorf(d.box[1] + 0.5f), (int)floorf(d.box[2] + 0.5f),
                (int)floorf(d.box[3] + 0.5f)};
    box.x1 = max(box.x1, box.x0 + 1);
    box.y1 = max(box.y1, box.y0 + 1);
    int tag_width = (length + SCORE_CHARACTERS) * glyphs.width + 2 * PADDING_X;
    int tag_height = glyphs.height + 2 * PADDING_Y;
    Rect tag;
    tag.x0 = max(min(box.x0, width - tag_width), 0);
    tag.y0 = box.y0 >= tag_height ? box.y0 - tag_height : box.y0;
    tag.x1 = tag.x0 + tag_width;
    tag.y1 = tag.y0 + tag_height;
    s.boxes[k] = box;
    s.tags[k] = tag;
    s.colors[k] = d.label % COLORS;
    s.lengths[k] = length + SCORE_CHARACTERS;
}

// Fills the lists of what may take pixels or chroma from mark `k`, in any order. Whole block; a mark a thread.
__device__ __forceinline__ void list_takers(Scene& s, int k, int marks, int thickness) {
    int j = threadIdx.x;
    if (j >= marks) return;
    Rect box = s.boxes[k].wide(), hole = s.boxes[k].shrunk(thickness).narrow();
    Rect other_box = s.boxes[j], other_tag = s.tags[j];
    Rect wide_box = other_box.wide(), wide_tag = other_tag.wide();
    if (j < k && wide_tag.meets(s.tags[k].wide())) s.over_tag[atomicAdd(&s.over_tag_count, 1)] = other_tag;
    // Frames and tags that lie in a frame's hole don't touch it.
    if (wide_tag.meets(box) && !hole.holds(wide_tag)) s.tags_over[atomicAdd(&s.tags_over_count, 1)] = other_tag;
    if (j < k && wide_box.meets(box) && !hole.holds(wide_box) && !other_box.shrunk(thickness).narrow().holds(box))
        s.frames_over[atomicAdd(&s.frames_over_count, 1)] = other_box;
}

// -- cells -----------------------------------------------------------------------------------------------------
// Which pixels of the cell at pixel (x, y) a rectangle covers: bits 0..3 the upper row, 4..7 the lower one.
__device__ __forceinline__ u32 cover(const Rect& r, int x, int y) {
    int a = min(max(r.x0 - x, 0), 4), b = min(max(r.x1 - x, 0), 4);
    u32 row = b > a ? (1u << b) - (1u << a) : 0;
    return (y >= r.y0 && y < r.y1 ? row : 0) | (y + 1 >= r.y0 && y + 1 < r.y1 ? row << 4 : 0);
}

__device__ __forceinline__ u32 cover_frame(const Rect& box, int thickness, int x, int y) {
    return cover(box, x, y) & ~cover(box.shrunk(thickness), x, y);
}

// Which of a cell's two chroma samples have a pixel in `bits`.
__device__ __forceinline__ u32 samples_of(u32 bits) { return ((bits & 0x33) != 0) | ((bits & 0xcc) != 0) << 1; }

__device__ __forceinline__ void store_row(u8* out, u32 word, u32 bits, bool is_wide) {
    if (bits == 15 && is_wide) {
        *(u32*)out = word;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (bits >> i & 1) out[i] = word >> 8 * i;
}

// Store the pixels `mine` that are not `taken` of the cell at (x, y), and the chroma that no taken pixel shares.
__device__ __forceinline__ void store_cell(const Target& t, int x, int y, u32 mine, u32 taken, u32 upper, u32 lower,
                                           int color) {
    u32 bits = mine & ~taken, samples = samples_of(mine) & ~samples_of(taken);
    u8* luma = t.luma + (u64)y * t.luma_pitch + x;
    if (bits & 15) store_row(luma, upper, bits & 15, t.is_wide);
    if (bits >> 4) store_row(luma + t.luma_pitch, lower, bits >> 4, t.is_wide);
    u32 pair = PALETTE[color][1] | PALETTE[color][2] << 8;
    u8* chroma = t.chroma + (u64)(y >> 1) * t.chroma_pitch + x;  // at an even address: cells and planes are
    if (samples == 3 && t.is_wide) {
        *(u32*)chroma = pair * 0x10001u;
    } else {
        if (samples & 1) *(u16*)chroma = pair;
        if (samples & 2) *(u16*)(chroma + 2) = pair;
    }
}

__device__ __forceinline__ void paint_frame(const Target& t, const Scene& s, const Mark& m, int thickness, int x,
                                            int y) {
    u32 inside = cover(t.picture, x, y), mine = cover_frame(m.box, thickness, x, y) & inside, taken = 0;
    for (int n = 0; n < m.tags_over_count; n++) taken |= cover(s.tags_over[n], x, y);
    for (int n = 0; n < m.frames_over_count; n++) taken |= cover_frame(s.frames_over[n], thickness, x, y);
    u32 word = PALETTE[m.color][0] * 0x01010101u;
    store_cell(t, x, y, mine, taken & inside, word, word, m.color);
}

__device__ __forceinline__ void paint_tag(const Target& t, const Scene& s, const Mark& m, const Glyphs& glyphs, int x,
                                          int y) {
    u32 inside = cover(t.picture, x, y), mine = cover(m.tag, x, y) & inside, taken = 0;
    for (int n = 0; n < m.over_tag_count; n++) taken |= cover(s.over_tag[n], x, y);
    float per_glyph = 1.0f / glyphs.width, per_scale = 1.0f / glyphs.scale;
    int text_width = m.characters * glyphs.width, background = PALETTE[m.color][0];
    int lines[2];  // of the glyphs; < 0: in the padding
    u32 ink[2][4];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        int offset = y + row - m.tag.y0 - PADDING_Y;
        lines[row] = offset < 0 || offset >= glyphs.height ? -1 : quotient(offset, per_scale);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int offset = x + i - m.tag.x0 - PADDING_X;
        bool is_text = offset >= 0 && offset < text_width;
        int place = is_text ? quotient(offset, per_glyph) : 0;
        int column = quotient(offset - place * glyphs.width, per_scale);
        const u8* glyph = glyphs.atlas + m.text[place] * glyphs.atlas_height * glyphs.atlas_width + column;
#pragma unroll
        for (int row = 0; row < 2; row++)
            ink[row][i] = is_text && lines[row] >= 0 ? __ldg(glyph + lines[row] * glyphs.atlas_width) : 0;
    }
    u32 words[2] = {0, 0};
#pragma unroll
    for (int row = 0; row < 2; row++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[row] |= (ink[row][i] * INK_LUMA + (255 - ink[row][i]) * background + 127) / 255 << 8 * i;
    store_cell(t, x, y, mine, taken & inside, words[0], words[1], m.color);
}

// The cells of mark `k`, its frame's and then its tag's, in a row: every SLICES-th run of THREADS from `slice` on.
__device__ __forceinline__ void paint_slice(const Target& t, const Scene& s, int k, int slice, int thickness,
                                            const Glyphs& glyphs) {
    const Mark m(s, k);
    Rect outer = m.box.within(t.picture).touched(), tag = m.tag.within(t.picture).touched();
    Rect hole = m.box.shrunk(thickness).inside().within(outer);
    if (hole.size() == 0) hole = {outer.x0, outer.y1, outer.x1, outer.y1};
    // Whole rows above and below the hole, then what is left and right of it.
    int side = outer.width(), left = hole.x0 - outer.x0, both = left + outer.x1 - hole.x1;
    int above = side * max(hole.y0 - outer.y0, 0), ring = above + side * max(outer.y1 - hole.y1, 0);
    int frame_end = ring + both * hole.height();
    if (outer.size() == 0) above = ring = frame_end = 0;
    int end = frame_end + tag.size();
    float per_side = 1.0f / max(side, 1), per_both = 1.0f / max(both, 1), per_tag = 1.0f / max(tag.width(), 1);
    for (int i = slice * THREADS + threadIdx.x; i < end; i += SLICES * THREADS) {
        if (i < frame_end) {
            int x, y;
            if (i < ring) {
                int row = quotient(i, per_side);
                x = outer.x0 + i - row * side;
                y = outer.y0 + row + (i < above ? 0 : hole.height());
            } else {
                int n = i - ring, row = quotient(n, per_both), column = n - row * both;
                x = outer.x0 + column + (column < left ? 0 : hole.width());
                y = hole.y0 + row;
            }
            paint_frame(t, s, m, thickness, 4 * x, 2 * y);
        } else {
            int n = i - frame_end, row = quotient(n, per_tag), column = n - row * tag.width();
            paint_tag(t, s, m, glyphs, 4 * (tag.x0 + column), 2 * (tag.y0 + row));
        }
    }
}

// Grid: x blocks that share a frame's work, y over frames; block of THREADS. `records` [frames] are the lane's copies;
// null reads each slot's own record.
extern "C" __global__ void __launch_bounds__(THREADS)
overlay(const Frame* frames, const Results* records, const u8* atlas, const u8* names, const u8* lengths,
        int glyph_width, int glyph_height) {
    __shared__ Scene s;
    int thread = threadIdx.x;
    const Frame& f = frames[blockIdx.y];
    const Results* results = records ? records + blockIdx.y : (const Results*)f.results;
    if (!results) return;
    Detection detection;
    // Read before it is known whether there are so many: one trip to memory instead of two. Not over the bus.
    if (records) detection = results->detections[thread];
    int marks = f.width > 0 && f.is_drawn ? results->count : 0;
    if ((int)blockIdx.x >= marks * SLICES) return;
    if (!records && thread < marks) detection = results->detections[thread];

    Target target = {(u8*)f.planes[0], (u8*)f.planes[1], f.pitches[0], f.pitches[1], {0, 0, f.width, f.height}, false};
    target.is_wide = (((u64)target.luma | (u64)target.chroma | target.luma_pitch | target.chroma_pitch) & 3) == 0;
    int scale = max(1, f.height / 900), thickness = (f.height >= 720 ? 3 : 2) * scale;
    Glyphs glyphs = {atlas, glyph_width, glyph_height, scale, glyph_width * scale, glyph_height * scale};
    if (thread < marks) lay_out(s, thread, detection, names, lengths, glyphs, f.width);

    for (int item = blockIdx.x; item < marks * SLICES; item += gridDim.x) {
        if (thread == 0) s.over_tag_count = s.tags_over_count = s.frames_over_count = 0;
        __syncthreads();
        list_takers(s, item / SLICES, marks, thickness);
        __syncthreads();
        paint_slice(target, s, item / SLICES, item % SLICES, thickness, glyphs);
        __syncthreads();  // the lists are no longer read
    }
}
