// Shared by every kernel: the descriptor of one frame, and sampling of its picture.
//
// The host writes a table of Frames for each launch (descriptor.py mirrors the layout), so that one captured graph
// serves every slot. A Frame of width 0 is empty: kernels then touch nothing of its picture and results.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum PixelFormat { NV12 = 0, I420 = 1, P010 = 2, RGB24 = 3 };

struct Frame {
    u64 planes[3];      // device addresses of the first pixels
    u64 results;        // the slot's result record in mapped pinned memory, as the device sees it
    u64 mask;           // u8 [ceil(height / 2), ceil(width / 2)], not 0 where the picture is hidden; 0: there is none
    int pitches[3];     // bytes
    int mask_pitch;     // bytes, a multiple of 4
    int width, height;  // pixels of the luma plane
    int format;         // PixelFormat
    int is_bt709;
    int is_full_range;
    int box_width, box_height, box_left, box_top;  // core/geometry.py's Letterbox, pixels of the model's input
    int is_drawn;       // masks and results are drawn into the picture
};

static_assert(sizeof(Frame) == 96, "descriptor.py packs 96 bytes");

#define MAX_DETECTIONS 256

struct Detection {
    float box[4];  // x1, y1, x2, y2 in source pixels
    float score;
    int label;
};

struct Results {
    int count;
    int candidates;
    Detection detections[MAX_DETECTIONS];
};

// Two neighbours along an axis and the weight of the second.
struct Tap {
    int low, high;
    float weight;
};

// The tap at position numerator / denominator, clamped to 0 .. samples - 1. Integers keep it exact: no float of a
// coordinate loses bits in wide pictures, and numpy's float64 tables come out the same.
__device__ __forceinline__ Tap tap_at(int numerator, int denominator, int samples) {
    numerator = max(0, min(numerator, (samples - 1) * denominator));
    Tap tap;
    tap.low = numerator / denominator;
    tap.high = min(tap.low + 1, samples - 1);
    tap.weight = (float)(numerator - tap.low * denominator) / (float)denominator;
    return tap;
}

__device__ __forceinline__ float blend(float a, float b, float weight) { return a + (b - a) * weight; }

// The two rows of a plane that a pixel samples, and the weight of the lower one.
struct Rows {
    u64 top, bottom;
    float weight;
};

__device__ __forceinline__ Rows rows_of(u64 plane, int pitch, const Tap& y) {
    return {plane + (u64)y.low * pitch, plane + (u64)y.high * pitch, y.weight};
}

// A bilinear sample of component `component` of `components` interleaved ones.
template <typename T>
__device__ __forceinline__ float sample(const Rows& r, const Tap& x, int components = 1, int component = 0) {
    const T *top = (const T*)r.top + component, *bottom = (const T*)r.bottom + component;
    float a = blend(__ldg(top + x.low * components), __ldg(bottom + x.low * components), r.weight);
    float b = blend(__ldg(top + x.high * components), __ldg(bottom + x.high * components), r.weight);
    return blend(a, b, x.weight);
}

// A bilinear sample of both components of interleaved pairs, each pair read at once.
template <typename T>
__device__ __forceinline__ void sample_pair(const Rows& r, const Tap& x, float* out) {
    const T *top = (const T*)r.top, *bottom = (const T*)r.bottom;
    T a = __ldg(top + x.low), b = __ldg(bottom + x.low), c = __ldg(top + x.high), d = __ldg(bottom + x.high);
    out[0] = blend(blend(a.x, b.x, r.weight), blend(c.x, d.x, r.weight), x.weight);
    out[1] = blend(blend(a.y, b.y, r.weight), blend(c.y, d.y, r.weight), x.weight);
}
