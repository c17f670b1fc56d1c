// A model's output -> detections in source pixels, for a whole batch, without the host. Twin: backends/cpu/detect.py,
// whose module docstring gives the four steps; equal to it bit for bit (compiled without fused multiply-add).
//
// Two launches. `collect` looks at every anchor once: bytes of the output over bandwidth. `suppress` is one block a
// frame: top-k, sort, NMS, and the result record. Candidates arrive in any order, but their keys are unique and are
// sorted, so the result does not depend on it.
#include "common.cuh"

#define MAX_CANDIDATES 1024
#define ANCHORS 32  // anchors of a block in `collect`: a warp reads 128 consecutive bytes of each class row
#define GROUPS 8    // groups of classes that a block looks at side by side

// Best score first, then the lower anchor: one number that sorts both ways. Positive floats sort as their bits.
__device__ __forceinline__ u64 key_of(float score, int anchor) {
    return ((u64)__float_as_uint(score) << 32) | (u32)~anchor;
}
__device__ __forceinline__ float score_of(u64 key) { return __uint_as_float((u32)(key >> 32)); }
__device__ __forceinline__ int anchor_of(u64 key) { return (int)~(u32)key; }

struct Box {
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

// Grid: x over anchors, y over frames; block 32 x 8. `counters` [frames] are zero on entry; `keys` and `labels`
// [frames, anchors]; `keeps_label` [classes].
extern "C" __global__ void __launch_bounds__(ANCHORS* GROUPS)
collect(const float* outputs, int classes, int anchors, float threshold, const u8* keeps_label, int* counters, u64* keys,
        int* labels) {
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
    bool is_candidate = anchor < anchors && best > threshold && best < __int_as_float(0x7f800000) && keeps_label[winner] &&
                        is_valid(box_of(output, anchors, anchor));
    u32 ballot = __ballot_sync(0xffffffffu, is_candidate);
    int base = 0;
    if (lane == 0 && ballot) base = atomicAdd(counters + frame, __popc(ballot));
    base = __shfl_sync(0xffffffffu, base, 0);
    if (is_candidate) {
        u64 row = (u64)frame * anchors;
        keys[row + base + __popc(ballot & ((1u << lane) - 1))] = key_of(best, anchor);
        labels[row + anchor] = winner;
    }
}

#define THREADS 256

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
        histogram[threadIdx.x] = 0;
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

// Bitonic sort, descending. `size` is a power of two. Whole block.
__device__ void sort_descending(u64* keys, int size) {
    for (int span = 2; span <= size; span <<= 1)
        for (int step = span >> 1; step > 0; step >>= 1) {
            for (int i = threadIdx.x; i < size / 2; i += THREADS) {
                int low = 2 * i - (i & (step - 1)), high = low + step;
                bool is_descending = (low & span) == 0;
                u64 a = keys[low], b = keys[high];
                if ((a < b) == is_descending) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
            __syncthreads();
        }
}

__device__ __forceinline__ bool overlaps(Box a, Box b, float nms_iou) {
    float width = fminf(a.x2, b.x2) - fmaxf(a.x1, b.x1), height = fminf(a.y2, b.y2) - fmaxf(a.y1, b.y1);
    float intersection = fmaxf(width, 0.0f) * fmaxf(height, 0.0f);
    float both = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1) - intersection;
    return intersection > nms_iou * both;
}

__device__ __forceinline__ float to_source(float x, int offset, float scale, int limit) {
    return fminf(fmaxf((x - (float)offset) * scale, 0.0f), (float)limit);
}

// Greedy NMS over `count` boxes, best first: fills `kept` with the indices of at most MAX_DETECTIONS that stay and
// returns how many. Whole block.
//
// By chunks of 32: overlaps within the chunk side by side, then one warp decides its boxes in order, bits in registers,
// then the chunk's survivors suppress what comes after. Three barriers a chunk instead of one a box.
__device__ int keep_best(const Box* boxes, const int* labels, bool* is_dead, int count, float nms_iou, int* kept) {
    __shared__ u32 suppressed_by[32];  // bit j of entry i: box i of the chunk suppresses box j > i
    __shared__ u32 survivors;
    int thread = threadIdx.x, lane = thread & 31, total = 0;
    for (int start = 0; start < count && total < MAX_DETECTIONS; start += 32) {
        int end = min(start + 32, count);
        for (int i = start + thread / 32; i < end; i += THREADS / 32) {
            int j = start + lane;
            bool is_overlap = j > i && j < end && labels[i] == labels[j] && overlaps(boxes[i], boxes[j], nms_iou);
            u32 bits = __ballot_sync(0xffffffffu, is_overlap);
            if (lane == 0) suppressed_by[i - start] = bits;
        }
        __syncthreads();
        if (thread < 32) {
            bool is_alive = start + lane < end && !is_dead[start + lane];
            u32 alive = __ballot_sync(0xffffffffu, is_alive);
            u32 mine = is_alive ? suppressed_by[lane] : 0;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                u32 bits = __shfl_sync(0xffffffffu, mine, i);
                if (alive >> i & 1) alive &= ~bits;
            }
            int position = total + __popc(alive & ((1u << lane) - 1));
            if ((alive >> lane & 1) && position < MAX_DETECTIONS) kept[position] = start + lane;
            if (lane == 0) survivors = alive;
        }
        __syncthreads();
        int before = total;
        total = min(total + __popc(survivors), MAX_DETECTIONS);
        // A warp looks at one survivor and 32 boxes at a time.
        for (int j = end + lane; j < count; j += 32)
            for (int k = before + thread / 32; k < total; k += THREADS / 32) {
                int i = kept[k];
                if (labels[i] == labels[j] && overlaps(boxes[i], boxes[j], nms_iou)) is_dead[j] = true;
            }
        __syncthreads();
    }
    return total;
}

// How many of this block's threads before this one have `flag` set; `total` gets how many in all. Whole block.
__device__ int rank_of(bool flag, int* total) {
    __shared__ int warps[THREADS / 32];
    u32 ballot = __ballot_sync(0xffffffffu, flag);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) warps[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), sum = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        if (w == warp) before += sum;
        sum += warps[w];
    }
    *total = sum;
    return before;
}

// Grid: x over frames; block of 256. Writes the slot's mapped record and `records` [frames], the lane's own copy that
// the overlay reads; sets the frame's counter back to zero for the next launch.
extern "C" __global__ void __launch_bounds__(THREADS)
suppress(const Frame* frames, const float* outputs, int classes, int anchors, float nms_iou, int* counters,
         const u64* all_keys, const int* all_labels, Results* records) {
    __shared__ u64 keys[MAX_CANDIDATES];
    __shared__ Box boxes[MAX_CANDIDATES];
    __shared__ int labels[MAX_CANDIDATES];
    __shared__ bool is_dead[MAX_CANDIDATES];
    __shared__ int kept[MAX_DETECTIONS];
    __shared__ int gathered;
    __shared__ Results record;
    int frame = blockIdx.x, thread = threadIdx.x;
    Frame f = frames[frame];
    const float* output = outputs + (u64)frame * (4 + classes) * anchors;
    const u64* frame_keys = all_keys + (u64)frame * anchors;
    const int* frame_labels = all_labels + (u64)frame * anchors;
    int candidates = counters[frame];
    int count = min(candidates, MAX_CANDIDATES);

    u64 weakest = candidates > MAX_CANDIDATES ? weakest_kept(frame_keys, candidates) : 0;
    if (thread == 0) gathered = 0;
    __syncthreads();
    for (int i = thread; i < candidates; i += THREADS) {
        u64 key = frame_keys[i];
        if (key >= weakest) keys[atomicAdd(&gathered, 1)] = key;
    }
    int size = 2;
    while (size < count) size <<= 1;
    __syncthreads();
    for (int i = count + thread; i < size; i += THREADS) keys[i] = 0;
    __syncthreads();
    sort_descending(keys, size);

    for (int i = thread; i < count; i += THREADS) {
        int anchor = anchor_of(keys[i]);
        boxes[i] = box_of(output, anchors, anchor);
        labels[i] = frame_labels[anchor];
        is_dead[i] = false;
    }
    __syncthreads();
    int alive = keep_best(boxes, labels, is_dead, count, nms_iou, kept);

    Detection detection;
    bool is_inside = false;
    if (thread < alive && f.width > 0) {
        Box box = boxes[kept[thread]];
        float scale_x = (float)((double)f.width / f.box_width), scale_y = (float)((double)f.height / f.box_height);
        detection.box[0] = to_source(box.x1, f.box_left, scale_x, f.width);
        detection.box[1] = to_source(box.y1, f.box_top, scale_y, f.height);
        detection.box[2] = to_source(box.x2, f.box_left, scale_x, f.width);
        detection.box[3] = to_source(box.y2, f.box_top, scale_y, f.height);
        detection.score = score_of(keys[kept[thread]]);
        detection.label = labels[kept[thread]];
        is_inside = detection.box[2] > detection.box[0] && detection.box[3] > detection.box[1];
    }
    int total;
    int rank = rank_of(is_inside, &total);
    if (is_inside) record.detections[rank] = detection;
    if (thread == 0) {
        record.count = total;
        record.candidates = candidates;
        counters[frame] = 0;
    }
    __syncthreads();
    // Word by word, neighbours by neighbours: few large writes over the bus instead of many small ones.
    const u32* words = (const u32*)&record;
    u32 *host = (u32*)f.results, *device = (u32*)(records + frame);
    int length = (2 * sizeof(int) + total * sizeof(Detection)) / sizeof(u32);
    for (int i = thread; i < length; i += THREADS) {
        u32 word = words[i];
        device[i] = word;
        if (host) host[i] = word;
    }
}
