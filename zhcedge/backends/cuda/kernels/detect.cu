// A model's output -> detections in source pixels, for a whole batch, without the host. Twin: backends/cpu/detect.py,
// whose module docstring gives the four steps; equal to it bit for bit (compiled without fused multiply-add).
//
// Two launches. `collect` looks at every anchor once: bytes of the output over bandwidth. `suppress` is one block a
// frame: NMS and the result record. It moves few bytes, so its time is the sum of its waits: all reads are issued at
// once, all pairs of boxes are compared side by side, all boxes decide side by side. A frame seldom has more than 256
// candidates; only one that has pays for top-k and a sort. Candidates arrive in any order, but their keys are unique
// and rank them, so the result does not depend on it.
#include "common.cuh"

#define MAX_CANDIDATES 1024
#define ANCHORS 32  // anchors of a block in `collect`: a warp reads 128 consecutive bytes of each class row
#define GROUPS 8    // groups of classes that a block looks at side by side

// Best score first, then the lower anchor: one number that sorts both ways. Positive floats sort as their bits. The low
// bits are free for `suppress`, to find a candidate's box again after the sort.
#define SLOT_BITS 10
#define MAX_ANCHORS (1 << 22)  // stages.py refuses more
static_assert(MAX_CANDIDATES == 1 << SLOT_BITS, "a slot has its bits in the key");

__device__ __forceinline__ u64 key_of(float score, int anchor) {
    return ((u64)__float_as_uint(score) << 32) | (u32)(MAX_ANCHORS - 1 - anchor) << SLOT_BITS;
}
__device__ __forceinline__ float score_of(u64 key) { return __uint_as_float((u32)(key >> 32)); }
__device__ __forceinline__ int slot_of(u64 key) { return (int)(key & (MAX_CANDIDATES - 1)); }

struct __align__(16) Box {
    float x1, y1, x2, y2;
};

__device__ __forceinline__ Box box_of(const float* output, int anchors, int anchor) {
    float cx = output[anchor], cy = output[anchors + anchor];
    float half_width = output[2 * anchors + anchor] * 0.5f, half_height = output[3 * anchors + anchor] * 0.5f;
    return {cx - half_width, cy - half_height, cx + half_width, cy + half_height};
}

__device__ __forceinline__ bool is_valid(Box b) {
    return b.x2 > b.x1 && b.y2 > b.y1 && isfinite(b.x1) && isfinite(b.y1) && isfinite(b.x2) && isfinite(b.y2);
}

// Grid: x over anchors, y over frames; block 32 x 8. `counters` [frames] are zero on entry; `keys`, `boxes` and `labels`
// [frames, anchors] are filled from the front, candidate by candidate; `keeps_label` [classes].
extern "C" __global__ void __launch_bounds__(ANCHORS* GROUPS)
collect(const float* outputs, int classes, int anchors, float threshold, const u8* keeps_label, int* counters, u64* keys,
        Box* boxes, int* labels) {
    __shared__ float scores[GROUPS][ANCHORS];
    __shared__ int winners[GROUPS][ANCHORS];
    int lane = threadIdx.x, group = threadIdx.y, frame = blockIdx.y;
    int anchor = blockIdx.x * ANCHORS + lane;
    const float* output = outputs + (u64)frame * (4 + classes) * anchors;
    float best = -__int_as_float(0x7f800000);
    int winner = 0;
    if (anchor < anchors) {
        const float* column = output + 4 * (u64)anchors + anchor;
#pragma unroll 5
        for (int c = group; c < classes; c += GROUPS) {
            float value = __ldg(column + (u64)c * anchors);
            if (value > best) {  // false for NaN; ties stay with the lower class
                best = value;
                winner = c;
            }
        }
    }
    scores[group][lane] = best;
    winners[group][lane] = winner;
    __syncthreads();
    if (group > 0) return;
    for (int g = 1; g < GROUPS; g++) {
        float value = scores[g][lane];
        if (value > best || (value == best && winners[g][lane] < winner)) {
            best = value;
            winner = winners[g][lane];
        }
    }
    bool is_candidate = anchor < anchors && best > threshold && best < __int_as_float(0x7f800000) && keeps_label[winner];
    Box box;
    if (is_candidate) {
        box = box_of(output, anchors, anchor);
        is_candidate = is_valid(box);
    }
    u32 ballot = __ballot_sync(0xffffffffu, is_candidate);
    int base = 0;
    if (lane == 0 && ballot) base = atomicAdd(counters + frame, __popc(ballot));
    base = __shfl_sync(0xffffffffu, base, 0);
    if (is_candidate) {
        u64 position = (u64)frame * anchors + base + __popc(ballot & ((1u << lane) - 1));
        keys[position] = key_of(best, anchor);
        boxes[position] = box;
        labels[position] = winner;
    }
}

#define THREADS MAX_CANDIDATES  // of `suppress`
#define CHUNK 256               // boxes that NMS decides together, one to each of the first threads
#define WORDS (CHUNK / 32)      // of a set of a chunk's boxes: box j is bit j % 32 of word j / 32
static_assert(CHUNK == MAX_DETECTIONS, "each of the first threads writes a detection");

// What `suppress` keeps in shared memory. The candidates are sorted only when they are more than a chunk.
struct Shared {
    Box boxes[MAX_CANDIDATES];
    u64 keys[MAX_CANDIDATES];
    int labels[MAX_CANDIDATES];
    union {
        u64 exchange[2][THREADS];  // the sort's; the others are needed after it
        struct {
            __align__(16) u32 rivals[CHUNK][WORDS];  // of each box of the chunk: the better ones that overlap it
            __align__(16) u64 ranked[CHUNK];
            __align__(8) Results record;
        };
    };
    u32 dead[WORDS], alive[WORDS];
    int kept[MAX_DETECTIONS];  // candidates that stay
    int kept_count;
    float scale_x, scale_y;
};

// Barriers of the first CHUNK threads, while the others wait elsewhere or have returned.
__device__ __forceinline__ void sync_chunk() { asm volatile("bar.sync 1, %0;" ::"n"(CHUNK) : "memory"); }
__device__ __forceinline__ bool any_of_chunk(bool flag) {
    int any;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0; bar.red.or.pred q, 1, %2, p; selp.s32 %0, 1, 0, q; }"
                 : "=r"(any) : "r"((int)flag), "n"(CHUNK) : "memory");
    return any;
}
__device__ __forceinline__ int count_of_chunk(bool flag) {
    int count;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, 1, %2, p; }"
                 : "=r"(count) : "r"((int)flag), "n"(CHUNK) : "memory");
    return count;
}

// -- more candidates than a chunk ------------------------------------------------------------------------------
// The 1024th largest of `count` > 1024 unique keys, by radix selection from the top byte down. Whole block.
__device__ u64 weakest_kept(const u64* keys, int count) {
    __shared__ int histogram[256];
    __shared__ u64 prefix;
    __shared__ int wanted;
    if (threadIdx.x == 0) {
        prefix = 0;
        wanted = MAX_CANDIDATES;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        u64 above = prefix;
        for (int i = threadIdx.x; i < count; i += THREADS) {
            u64 key = keys[i];
            if (shift == 56 || key >> (shift + 8) == above) atomicAdd(histogram + (int)((key >> shift) & 255), 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int bucket = 255;
            while (histogram[bucket] < wanted) wanted -= histogram[bucket--];
            prefix = above << 8 | bucket;
        }
        __syncthreads();
    }
    return prefix;
}

// Bitonic sort, descending, of one key a thread; returns the key that belongs at the thread's position. Whole block.
// Partners in a warp swap in registers; others by `exchange`, two buffers by turns, so that a barrier a step is enough.
__device__ u64 sort_descending(u64 key, u64 (*exchange)[THREADS]) {
    int thread = threadIdx.x, turn = 0;
    for (int span = 2; span <= THREADS; span <<= 1)
        for (int step = span >> 1; step > 0; step >>= 1) {
            u64 other;
            if (step < 32) {
                other = __shfl_xor_sync(~0u, key, step);
            } else {
                u64* buffer = exchange[turn ^= 1];
                buffer[thread] = key;
                __syncthreads();
                other = buffer[thread ^ step];
            }
            bool keeps_larger = ((thread & step) == 0) == ((thread & span) == 0);
            if ((key > other) != keeps_larger) key = other;
        }
    return key;
}

// The best MAX_CANDIDATES of `candidates` into shared memory, best first. Whole block. Not inlined: the usual frame
// pays no registers for it.
__device__ __noinline__ void load_sorted(Shared& s, const u64* keys, const Box* boxes, const int* labels,
                                         int candidates) {
    __shared__ int gathered;
    int thread = threadIdx.x;
    u64 key = 0;
    if (candidates > MAX_CANDIDATES) {
        u64 weakest = weakest_kept(keys, candidates);
        if (thread == 0) gathered = 0;
        __syncthreads();
        for (int i = thread; i < candidates; i += THREADS) {
            u64 found = keys[i];
            if (found < weakest) continue;
            int slot = atomicAdd(&gathered, 1);
            s.exchange[0][slot] = found | slot;
            s.boxes[slot] = boxes[i];
            s.labels[slot] = labels[i];
        }
        __syncthreads();
        key = s.exchange[0][thread];
    } else if (thread < candidates) {
        key = keys[thread] | thread;
        s.boxes[thread] = boxes[thread];
        s.labels[thread] = labels[thread];
    }
    key = sort_descending(key, s.exchange);
    __syncthreads();  // boxes and labels are all there
    Box box = s.boxes[slot_of(key)];
    int label = s.labels[slot_of(key)];
    __syncthreads();
    s.keys[thread] = key;
    s.boxes[thread] = box;
    s.labels[thread] = label;
}

// -- NMS -------------------------------------------------------------------------------------------------------
__device__ __forceinline__ bool overlaps(Box a, Box b, float nms_iou) {
    float width = fminf(a.x2, b.x2) - fmaxf(a.x1, b.x1), height = fminf(a.y2, b.y2) - fmaxf(a.y1, b.y1);
    if (!(width > 0.0f && height > 0.0f)) return false;  // nothing is above a share of the union, which is not negative
    float intersection = width * height;
    float both = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1) - intersection;
    return intersection > nms_iou * both;
}

// Boxes of the chunk that an earlier chunk's survivor suppresses, into `dead`. Whole block, a quarter of the survivors
// for each quarter of it.
__device__ __forceinline__ void bury(Shared& s, int start, int size, int kept, float nms_iou) {
    int j = threadIdx.x % CHUNK;
    bool is_dead = false;
    for (int k = threadIdx.x / CHUNK; k < kept && j < size; k += THREADS / CHUNK) {
        int i = s.kept[k];
        if (s.labels[i] == s.labels[start + j] && overlaps(s.boxes[i], s.boxes[start + j], nms_iou)) is_dead = true;
    }
    u32 bits = __ballot_sync(~0u, is_dead);
    if (threadIdx.x % 32 == 0 && bits) atomicOr(s.dead + j / 32, bits);
}

// Fills `rivals`. Whole block, a quarter of the pairs for each quarter of it. A box looks at those that follow it up to
// halfway round the circle: every pair once, and the same work for all threads.
__device__ __forceinline__ void find_rivals(Shared& s, int start, int size, float nms_iou) {
    int j = threadIdx.x % CHUNK;
    if (j >= size) return;
    const Box* boxes = s.boxes + start;
    const u64* keys = s.keys + start;
    const int* labels = s.labels + start;
    Box box = boxes[j];
    u64 key = keys[j];
    int label = labels[j], last = size / 2;
    if (2 * last == size && j >= last) last--;  // the box opposite has looked at this pair
#pragma unroll 4
    for (int step = 1 + threadIdx.x / CHUNK; step <= last; step += THREADS / CHUNK) {
        int i = j + step;
        if (i >= size) i -= size;
        if (labels[i] != label) continue;
        if (!overlaps(box, boxes[i], nms_iou)) continue;
        bool wins = key > keys[i];
        int winner = wins ? j : i, loser = wins ? i : j;
        atomicOr(&s.rivals[loser][winner / 32], 1u << winner % 32);
    }
}

// Who of the chunk stays, into `alive`. The first CHUNK threads. All boxes decide again and again: one dies when a
// rival stays, and stays when all its rivals are dead. Greedy NMS is the only outcome that fits, whatever the order of
// the decisions, and each round decides at least the best of the open boxes. Scenes need two or three.
__device__ __forceinline__ void decide(Shared& s) {
    volatile u32 *dead = s.dead, *alive = s.alive;
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    bool is_open = !(dead[warp] >> lane & 1);
    u32 mine[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; w++) mine[w] = s.rivals[thread][w];
    // A word may be read while its own warp adds to it: then the reader learns of it now or in the next round.
    while (any_of_chunk(is_open)) {
        u32 killers = 0, doubts = 0;
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            killers |= mine[w] & alive[w];
            doubts |= mine[w] & ~dead[w];
        }
        bool dies = is_open && killers, stays = is_open && !doubts;
        u32 dying = __ballot_sync(~0u, dies), staying = __ballot_sync(~0u, stays);
        if (lane == 0 && dying) dead[warp] = dead[warp] | dying;
        if (lane == 0 && staying) alive[warp] = alive[warp] | staying;
        is_open = is_open && !dies && !stays;
    }
}

// Greedy NMS of the `size` boxes from `start` on, after the `kept` survivors of better chunks; returns how many there
// are now, at most MAX_DETECTIONS. Whole block. Within a chunk the boxes may have any order.
__device__ __forceinline__ int keep_best(Shared& s, int start, int size, int kept, float nms_iou) {
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    if (thread < CHUNK) {
        uint4* row = (uint4*)s.rivals[thread];
        row[0] = row[1] = make_uint4(0, 0, 0, 0);
    }
    if (thread < WORDS) {
        int rest = size - 32 * thread;  // boxes beyond the last one are dead
        s.dead[thread] = rest >= 32 ? 0 : rest <= 0 ? ~0u : ~0u << rest;
        s.alive[thread] = 0;
    }
    __syncthreads();
    if (kept > 0) bury(s, start, size, kept, nms_iou);
    find_rivals(s, start, size, nms_iou);
    __syncthreads();
    if (thread < CHUNK) {
        decide(s);
        int position = kept, sum = kept;
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            int count = __popc(s.alive[w]);
            if (w < warp) position += count;
            sum += count;
        }
        u32 word = s.alive[warp];
        position += __popc(word & ((1u << lane) - 1));
        if ((word >> lane & 1) && position < MAX_DETECTIONS) s.kept[position] = start + thread;
        if (thread == 0) s.kept_count = min(sum, MAX_DETECTIONS);
    }
    __syncthreads();
    return s.kept_count;
}

__device__ __forceinline__ float to_source(float x, int offset, float scale, int limit) {
    return fminf(fmaxf((x - (float)offset) * scale, 0.0f), (float)limit);
}

// Grid: x over frames; a block of THREADS. `anchors` is the length of a frame's row in `all_keys`, `all_boxes` and
// `all_labels`. Writes the slot's mapped record and `records` [frames], the lane's own copy that the overlay reads;
// sets the frame's counter back to zero for the next launch.
extern "C" __global__ void __launch_bounds__(THREADS)
suppress(const Frame* frames, int anchors, float nms_iou, int* counters, const u64* all_keys, const Box* all_boxes,
         const int* all_labels, Results* records) {
    __shared__ Shared s;
    int frame = blockIdx.x, thread = threadIdx.x;
    Frame f = frames[frame];
    const u64* keys = all_keys + (u64)frame * anchors;
    const Box* boxes = all_boxes + (u64)frame * anchors;
    const int* labels = all_labels + (u64)frame * anchors;
    int candidates = counters[frame];
    if (thread < CHUNK) {  // all reads first: one trip to memory, which does not wait for how many there are
        int mine = min(thread, anchors - 1);
        u64 key = keys[mine];
        Box box = boxes[mine];
        int label = labels[mine];
        s.keys[thread] = key;
        s.boxes[thread] = box;
        s.labels[thread] = label;
    }
    if (thread == THREADS - 1) {  // divisions of doubles are slow: while the others work
        s.scale_x = (float)((double)f.width / f.box_width);
        s.scale_y = (float)((double)f.height / f.box_height);
    }
    if (candidates > CHUNK) load_sorted(s, keys, boxes, labels, candidates);
    int count = min(candidates, MAX_CANDIDATES), kept = 0;
    for (int start = 0; start < count && kept < MAX_DETECTIONS; start += CHUNK)
        kept = keep_best(s, start, min(CHUNK, count - start), kept, nms_iou);
    if (thread >= CHUNK) return;

    Detection detection;
    u64 key = 0;  // 0: no detection
    if (thread < kept && f.width > 0) {
        int i = s.kept[thread];
        Box box = s.boxes[i];
        detection.box[0] = to_source(box.x1, f.box_left, s.scale_x, f.width);
        detection.box[1] = to_source(box.y1, f.box_top, s.scale_y, f.height);
        detection.box[2] = to_source(box.x2, f.box_left, s.scale_x, f.width);
        detection.box[3] = to_source(box.y2, f.box_top, s.scale_y, f.height);
        detection.score = score_of(s.keys[i]);
        detection.label = s.labels[i];
        if (detection.box[2] > detection.box[0] && detection.box[3] > detection.box[1]) key = s.keys[i];
    }
    s.ranked[thread] = key;
    int total = count_of_chunk(key != 0);
    if (key != 0) {
        int rank = 0;
#pragma unroll 4
        for (int i = 0; i < kept; i += 2) {
            ulonglong2 two = *(const ulonglong2*)(s.ranked + i);
            rank += (two.x > key) + (two.y > key);
        }
        s.record.detections[rank] = detection;
    }
    if (thread == 0) {
        s.record.count = total;
        s.record.candidates = candidates;
        counters[frame] = 0;
    }
    sync_chunk();
    // Word by word, neighbours by neighbours: few large writes over the bus instead of many small ones.
    const u64* words = (const u64*)&s.record;
    u64 *host = (u64*)f.results, *device = (u64*)(records + frame);
    int length = (2 * sizeof(int) + total * sizeof(Detection)) / sizeof(u64);
    for (int i = thread; i < length; i += CHUNK) {
        u64 word = words[i];
        if (host) host[i] = word;
        device[i] = word;
    }
}
