// Norm, rotary embedding, rotation and rounding of activations: everything that
// touches one row at a time. Rows may have any length; a tail shorter than
// sixteen lanes goes through a zero-padded copy.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static inline V16 load_tail(const float* x, int n) {
    float padded[16] = {};
    for (int i = 0; i < n; ++i) padded[i] = x[i];
    return load(padded);
}
static inline void store_tail(float* x, V16 a, int n) {
    float padded[16];
    store(padded, a);
    for (int i = 0; i < n; ++i) x[i] = padded[i];
}

static void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    V16 squares = set1(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const V16 v = load(x + i);
        squares = fma(v, v, squares);
    }
    if (i < n) {
        const V16 v = load_tail(x + i, n - i);
        squares = fma(v, v, squares);
    }
    const float mean = reduce_add(squares) / static_cast<float>(n);
    const V16 factor = set1(1.0f / __builtin_sqrtf(mean + eps));
    for (i = 0; i + 16 <= n; i += 16) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
    if (i < n) store_tail(out + i, mul(mul(load_tail(x + i, n - i), factor), load_tail(weight + i, n - i)), n - i);
}

// Apply `f` to x[i .. i + 16) and the same lanes of y, which may be null, and store the result in `out`.
template <class F>
static inline void map_lanes(const float* x, const float* y, int n, float* out, F&& f) {
    const V16 none = set1(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, f(load(x + i), y == nullptr ? none : load(y + i)));
    if (i < n) store_tail(out + i, f(load_tail(x + i, n - i), y == nullptr ? none : load_tail(y + i, n - i)), n - i);
}

static void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* out) {
    V16 sums = set1(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) sums = add(sums, load(x + i));
    if (i < n) sums = add(sums, load_tail(x + i, n - i));
    const V16 mean = set1(reduce_add(sums) / static_cast<float>(n));
    map_lanes(x, nullptr, n, out, [&](V16 a, V16) { return sub(a, mean); });
    rms_norm(out, weight, n, eps, out);
    if (bias != nullptr) map_lanes(out, bias, n, out, [](V16 a, V16 b) { return add(a, b); });
}

template <class F>
static inline void activate_with(const float* x, const float* up, int n, float* out, F&& f) {
    if (up == nullptr)
        map_lanes(x, nullptr, n, out, [&](V16 a, V16) { return f(a); });
    else
        map_lanes(x, up, n, out, [&](V16 a, V16 b) { return mul(f(a), b); });
}

static void activate(Activation kind, const float* x, const float* up, int n, float* out) {
    switch (kind) {
        case Activation::silu:
            return activate_with(x, up, n, out, [](V16 a) { return silu(a); });
        case Activation::gelu_tanh:
            return activate_with(x, up, n, out, [](V16 a) { return gelu_tanh(a); });
        case Activation::gelu_erf:
            return activate_with(x, up, n, out, [](V16 a) { return gelu_erf(a); });
        case Activation::relu2:
            return activate_with(x, up, n, out, [](V16 a) { return relu2(a); });
        case Activation::swiglu_oai:
            return map_lanes(x, up, n, out, [](V16 a, V16 b) { return swiglu_oai(a, b); });
    }
}

static void exponentials(float* x, int n, float max_value) {
    const V16 shift = set1(max_value), log2e = set1(kLog2E);
    map_lanes(x, nullptr, n, x, [=](V16 a, V16) { return exp2(mul(sub(a, shift), log2e)); });
}

static void sigmoid_row(float* x, int n) {
    map_lanes(x, nullptr, n, x, [](V16 a, V16) { return sigmoid(a); });
}

static void softcap_row(float* x, int n, float cap) {
    map_lanes(x, nullptr, n, x, [c = set1(cap)](V16 a, V16) { return softcap(a, c); });
}

static void scale_row(float* x, int n, float factor) {
    map_lanes(x, nullptr, n, x, [f = set1(factor)](V16 a, V16) { return mul(a, f); });
}

static void add_scaled(float* x, const float* y, int n, float factor) {
    map_lanes(x, y, n, x, [f = set1(factor)](V16 a, V16 b) { return add(a, mul(b, f)); });
}

static void rope(float* x, const float* cosine, const float* sine, int n, float factor) {
    const int half = n / 2;
    const V16 scale = set1(factor);
    int i = 0;
    for (; i < half; i += 16) {
        const int m = half - i < 16 ? half - i : 16;
        const V16 a = m == 16 ? load(x + i) : load_tail(x + i, m);
        const V16 b = m == 16 ? load(x + half + i) : load_tail(x + half + i, m);
        const V16 c = m == 16 ? load(cosine + i) : load_tail(cosine + i, m);
        const V16 s = m == 16 ? load(sine + i) : load_tail(sine + i, m);
        const V16 first = mul(sub(mul(a, c), mul(b, s)), scale);
        const V16 second = mul(add(mul(b, c), mul(a, s)), scale);
        if (m == 16) {
            store(x + i, first);
            store(x + half + i, second);
        } else {
            store_tail(x + i, first, m);
            store_tail(x + half + i, second, m);
        }
    }
}

template <int kStride>
static inline V16 butterfly(V16 a) {
    // Lane i gets a[i] + a[i ^ stride] where bit `stride` of i is clear, a[i ^
    // stride] - a[i] where it is set.
    alignas(64) static constexpr float kSign[5][16] = {
        {},
        {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
        {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
        {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
        {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
    };
    constexpr int kRow = kStride == 1 ? 1 : kStride == 2 ? 2 : kStride == 4 ? 3 : 4;
    return fma(a, load(kSign[kRow]), swap_lanes<kStride>(a));
}

// The fast Walsh-Hadamard transform of 64 values in four registers, normalised.
static inline void hadamard64(float* x) {
    V16 v[4];
    for (int i = 0; i < 4; ++i) {
        v[i] = load(x + 16 * i);
        v[i] = butterfly<1>(v[i]);
        v[i] = butterfly<2>(v[i]);
        v[i] = butterfly<4>(v[i]);
        v[i] = butterfly<8>(v[i]);
    }
    const V16 s01 = add(v[0], v[1]), d01 = sub(v[0], v[1]);
    const V16 s23 = add(v[2], v[3]), d23 = sub(v[2], v[3]);
    const V16 norm = set1(0.125f);
    store(x, mul(add(s01, s23), norm));
    store(x + 16, mul(add(d01, d23), norm));
    store(x + 32, mul(sub(s01, s23), norm));
    store(x + 48, mul(sub(d01, d23), norm));
}

static void hadamard_small(float* x, int width) {
    for (int stride = 1; stride < width; stride *= 2)
        for (int start = 0; start < width; start += 2 * stride)
            for (int i = start; i < start + stride; ++i) {
                const float a = x[i], b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
    const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(width));
    for (int i = 0; i < width; ++i) x[i] *= norm;
}

static void hadamard(float* x, int n, int width) {
    if (width == 64) {
        for (int i = 0; i < n; i += 64) hadamard64(x + i);
    } else if (width > 1) {
        for (int i = 0; i < n; i += width) hadamard_small(x + i, width);
    }
}

static int32_t quantize(const float* x, int n, int8_t* out, float* scale) {
    const V16 zero = set1(0.0f);
    V16 largest = zero, nan_check = zero;  // nan_check becomes NaN where a value is NaN or infinite
    int i = 0;
    const auto look_at = [&](V16 v) {
        largest = max(abs(v), largest);
        nan_check = fma(v, zero, nan_check);
    };
    for (; i + 16 <= n; i += 16) look_at(load(x + i));
    if (const int left = n % 16; left > 0) look_at(load_tail(x + i, left));
    float peak = reduce_max(largest);
    if (peak < 1e-30f) peak = 0.0f;
    // A broken row gets a NaN scale: it stays visibly broken, and only itself.
    *scale = reduce_add(nan_check) == 0.0f ? peak / 127.0f : __builtin_nanf("");
    const V16 inverse = set1(peak > 0.0f ? 127.0f / peak : 0.0f);
    const V16 low = set1(-127.0f), high = set1(127.0f);
    // min and max also turn NaN into a number, whose conversion is defined.
    const auto codes = [&](V16 v) { return min(max(round_even(mul(v, inverse)), low), high); };
    V16 sums = zero;  // of integers far below 2^24: exact
    for (i = 0; i + 16 <= n; i += 16) {
        const V16 q = codes(load(x + i));
        store_int8(out + i, q);
        sums = add(sums, q);
    }
    if (const int left = n % 16; left > 0) {
        const V16 q = codes(load_tail(x + i, left));
        int8_t bytes[16];
        store_int8(bytes, q);
        for (int j = 0; j < left; ++j) out[i + j] = bytes[j];
        sums = add(sums, q);
    }
    return static_cast<int32_t>(reduce_add(sums));
}

static void to_bf16(const float* x, int n, uint16_t* out) {
    int i = 0;
    for (; i + 16 <= n; i += 16) store_bf16(out + i, load(x + i));
    if (i < n) {
        uint16_t words[16];
        store_bf16(words, load_tail(x + i, n - i));
        for (int j = 0; i + j < n; ++j) out[i + j] = words[j];
    }
}

static void divide_all(float* x, int n, float divisor) {
    const V16 d = set1(divisor);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(x + i, div(load(x + i), d));
    if (i < n) store_tail(x + i, div(load_tail(x + i, n - i), d), n - i);
}

}  // namespace hotseat::HOTSEAT_ISA
