// Weights as GGUF stores them, in groups with a scale (and a minimum) of their own, times activations in groups of 32.
//
//     w = scale * (code - offset)        or        w = scale * code + minimum
//
// Codes are integers of 4 or 8 bits, the products are integers and exact; scales join once a group:
//
//     y += scale_a * (scale_w * sum(code * a)), then y += minimum_w * (scale_a * sum(a))
//
// Of groups of 16 two are added up before scale_a joins.
//
// A half panel is 32 columns over all groups, each group: scales [32], minima [32] where there are any, codes. A vector
// of codes holds 16 columns times 4 values; with 4 bits its low halves are one step of K and its high halves the next.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// A QuantFormat at compile time. Codes of 6 bits take a byte as those of 8 do, but products of two fit in 16 bits.
template <int kCodeBits, int kGroupValues, bool kHasMinimumValue, bool kScaleIsHalfValue>
struct Layout {
    static constexpr int kBits = kCodeBits, kGroup = kGroupValues;
    static constexpr bool kHasMinimum = kHasMinimumValue, kScaleIsHalf = kScaleIsHalfValue;
    static constexpr int kSteps = kGroup / 4;  // of K
    static constexpr int kScaleBytes = kHalfPanel * (kScaleIsHalf ? 2 : 4);
    static constexpr int kCodeStart = kScaleBytes * (kHasMinimum ? 2 : 1);
    static constexpr int kBytes = kCodeStart + kHalfPanel * kGroup * (kBits == 4 ? 4 : 8) / 8;

    static V16 load_scales(const uint8_t* p, int vector) {
        if constexpr (kScaleIsHalf) return load_half(p + vector * 32);
        return load(reinterpret_cast<const float*>(p) + vector * 16);
    }
};

// Rows, and vectors of the half panel's two, that are worked on at once: what registers hold. A row alone takes both.
struct TileShape {
    int rows, vecs;
};

#if defined(HOTSEAT_AVX512)

static constexpr TileShape tile_shape(int) { return {6, 2}; }

struct Sums {
    __m512i v;
};
using Codes = __m512i;
template <int kBits>
static inline Sums start_sums(int32_t offset) {
    return {_mm512_set1_epi32(offset)};
}
static inline V16 to_float(Sums s) { return {_mm512_cvtepi32_ps(s.v)}; }
static inline Codes load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline Codes low_halves(Codes c) { return _mm512_and_si512(c, _mm512_set1_epi8(15)); }
static inline Codes high_halves(Codes c) { return low_halves(_mm512_srli_epi16(c, 4)); }
template <int kBits>
static inline void add_codes(Codes codes, int32_t x, Sums& sums) {
    multiply_add_int8(sums.v, codes, _mm512_set1_epi32(x));
}

#elif defined(HOTSEAT_AVX2)

static constexpr TileShape tile_shape(int) { return {3, 1}; }

struct Sums {
    __m256i lo, hi;
};
struct Codes {
    __m256i lo, hi;
};
template <int kBits>
static inline Sums start_sums(int32_t offset) {
    const __m256i start = _mm256_set1_epi32(kBits == 8 ? 0 : offset);
    return {start, start};
}
static inline V16 to_float(Sums s) { return {_mm256_cvtepi32_ps(s.lo), _mm256_cvtepi32_ps(s.hi)}; }
static inline Codes load_codes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
static inline Codes low_halves(Codes c) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(c.lo, mask), _mm256_and_si256(c.hi, mask)};
}
static inline Codes high_halves(Codes c) {
    return low_halves({_mm256_srli_epi16(c.lo, 4), _mm256_srli_epi16(c.hi, 4)});
}
template <int kBits>
static inline __m256i multiply_codes(__m256i codes, __m256i x) {
    // 63 * 127 * 2 fits in 16 bits, and so does 128 * 127 * 2: of codes in all of a byte, which have an offset of 128,
    // the magnitude is multiplied and the sign goes to the activation.
    if constexpr (kBits == 8) {
        codes = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
        x = _mm256_sign_epi8(x, codes);
        codes = _mm256_abs_epi8(codes);
    }
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
}
template <int kBits>
static inline void add_codes(Codes codes, int32_t x, Sums& sums) {
    const __m256i values = _mm256_set1_epi32(x);
    sums.lo = _mm256_add_epi32(sums.lo, multiply_codes<kBits>(codes.lo, values));
    sums.hi = _mm256_add_epi32(sums.hi, multiply_codes<kBits>(codes.hi, values));
}

#else

static constexpr TileShape tile_shape(int) { return {2, 1}; }

struct Sums {
    int32_t lane[16];
};
struct Codes {
    uint8_t byte[64];
};
template <int kBits>
static inline Sums start_sums(int32_t offset) {
    Sums s;
    for (int i = 0; i < 16; ++i) s.lane[i] = offset;
    return s;
}
static inline V16 to_float(const Sums& s) { return load_int32(s.lane); }
static inline Codes load_codes(const uint8_t* p) {
    Codes c;
    __builtin_memcpy(c.byte, p, 64);
    return c;
}
static inline Codes low_halves(Codes c) {
    for (int i = 0; i < 64; ++i) c.byte[i] &= 15;
    return c;
}
static inline Codes high_halves(Codes c) {
    for (int i = 0; i < 64; ++i) c.byte[i] >>= 4;
    return c;
}
template <int kBits>
static inline void add_codes(const Codes& codes, int32_t x, Sums& sums) {
    int8_t values[4];
    __builtin_memcpy(values, &x, 4);
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 4; ++k) sums.lane[i] += codes.byte[i * 4 + k] * values[k];
}

#endif

// kRows rows times kVecs vectors of one group: sums += codes * x.
template <class L, int kRows, int kVecs>
[[gnu::always_inline]] static inline void multiply_group(const uint8_t* codes, const uint8_t* x, size_t stride,
                                                         Sums (&sums)[kRows][kVecs]) {
    const auto add_step = [&](const Codes(&vectors)[kVecs], int step) {
        for (int r = 0; r < kRows; ++r) {
            int32_t word;
            __builtin_memcpy(&word, x + r * stride + step * 4, 4);
            for (int v = 0; v < kVecs; ++v) add_codes<L::kBits>(vectors[v], word, sums[r][v]);
        }
    };
    constexpr int kStepsAVector = L::kBits == 4 ? 2 : 1;
#pragma GCC unroll 8
    for (int i = 0; i < L::kSteps / kStepsAVector; ++i) {
        Codes vectors[kVecs], parts[kVecs];
        for (int v = 0; v < kVecs; ++v) vectors[v] = load_codes(codes + i * kHalfPanel * 4 + v * 64);
        if constexpr (L::kBits == 4) {
            for (int v = 0; v < kVecs; ++v) parts[v] = low_halves(vectors[v]);
            add_step(parts, 2 * i);
            for (int v = 0; v < kVecs; ++v) parts[v] = high_halves(vectors[v]);
            add_step(parts, 2 * i + 1);
        } else {
            add_step(vectors, i);
        }
    }
}

// What a pass reads ahead: `bytes` beside each 32 values of K.
struct Fetch {
    const uint8_t* from;
    int bytes;
};

// kRows rows times one half panel.
template <class L, int kRows>
static void grouped_rows(const GroupedTile& t, int row, Fetch fetch) {
    constexpr int kVecs = kRows == 1 ? 2 : tile_shape(L::kBits).vecs;
    constexpr int kParts = 32 / L::kGroup;  // groups of weights beside one of activations
    const uint8_t *p = t.half, *a = t.activations + row * t.activation_stride;
    const size_t stride = t.activation_stride;
    const auto group_of = [&](int r) { return reinterpret_cast<const ActivationGroup*>(a + r * stride); };
    V16 y[kRows][2];
    for (int r = 0; r < kRows; ++r) y[r][0] = y[r][1] = set1(0.0f);
    for (int g = 0; g < t.num_groups; ++g, a += sizeof(ActivationGroup), p += kParts * L::kBytes) {
        for (int i = 0; i < fetch.bytes; i += 64) __builtin_prefetch(fetch.from + i, 0, 2);
        fetch.from += fetch.bytes;
        for (int first = 0; first < 2; first += kVecs) {
            V16 products[kRows][kVecs];  // of codes and weights' scales
            for (int part = 0; part < kParts; ++part) {
                const uint8_t* group = p + part * L::kBytes;
                Sums sums[kRows][kVecs];
                for (int r = 0; r < kRows; ++r) {
                    const ActivationGroup* x = group_of(r);
                    const int32_t sum = kParts == 1 ? x->sum : x->half_sums[part];
                    const Sums start = start_sums<L::kBits>(-t.format->offset * sum);
                    for (int v = 0; v < kVecs; ++v) sums[r][v] = start;
                }
                multiply_group<L>(group + L::kCodeStart + first * 64, a + part * L::kGroup, stride, sums);
                for (int v = 0; v < kVecs; ++v) {
                    const V16 scale = L::load_scales(group, first + v);
                    for (int r = 0; r < kRows; ++r)
                        products[r][v] = part == 0 ? mul(to_float(sums[r][v]), scale)
                                                   : fma(to_float(sums[r][v]), scale, products[r][v]);
                }
            }
            for (int v = 0; v < kVecs; ++v) {
                V16 minimum{};
                if constexpr (L::kHasMinimum) minimum = L::load_scales(p + L::kScaleBytes, first + v);
                for (int r = 0; r < kRows; ++r) {
                    V16& sum = y[r][first + v];
                    sum = fma(products[r][v], set1(group_of(r)->scale), sum);
                    if constexpr (L::kHasMinimum) sum = fma(minimum, set1(group_of(r)->scaled_sum), sum);
                }
            }
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < 2; ++v) store(t.sums + (row + r) * kPanel + v * 16, y[r][v]);
}

// What to read ahead. The first two of several passes fetch a half each of the next half panel, which this thread will
// most likely multiply next. A single pass is done when memory has delivered, and the core's own prefetching does well
// but in two cases: one row of codes in bytes asks for its own half panel a little ahead, and several rows of 4-bit
// codes calculate long enough to fetch the next half panel.
template <class L>
static Fetch first_fetch(const GroupedTile& t, int num_passes, int group_bytes) {
    const size_t bytes = static_cast<size_t>(t.num_groups) * group_bytes;
    if (t.rows == 1) return {t.half + kFetchAhead, L::kBits == 4 ? 0 : group_bytes};
    if (bytes > kLargestFetch) return {t.half, 0};
    if (num_passes > 1) return {t.half + bytes, group_bytes / 2};
    return {t.half + bytes, L::kBits == 4 && t.rows > 2 ? group_bytes : 0};
}

// Passes over the half panel, of nearly equal numbers of rows.
template <class L>
static void grouped_passes(const GroupedTile& t) {
    constexpr int kMaxRows = tile_shape(L::kBits).rows;
    const int num_passes = (t.rows + kMaxRows - 1) / kMaxRows;
    Fetch fetch = first_fetch<L>(t, num_passes, 32 / L::kGroup * L::kBytes);
    for (int pass = 0; pass < num_passes; ++pass) {
        const int row = t.rows * pass / num_passes, count = t.rows * (pass + 1) / num_passes - row;
        if (pass == 1) fetch.from += static_cast<size_t>(t.num_groups) * fetch.bytes;
        if (pass == 2) fetch.bytes = 0;
        if constexpr (kMaxRows >= 6)
            if (count == 6) grouped_rows<L, 6>(t, row, fetch);
        if constexpr (kMaxRows >= 5)
            if (count == 5) grouped_rows<L, 5>(t, row, fetch);
        if constexpr (kMaxRows >= 4)
            if (count == 4) grouped_rows<L, 4>(t, row, fetch);
        if constexpr (kMaxRows >= 3)
            if (count == 3) grouped_rows<L, 3>(t, row, fetch);
        if (count == 2) grouped_rows<L, 2>(t, row, fetch);
        if (count == 1) grouped_rows<L, 1>(t, row, fetch);
    }
}

static void grouped_sums(const GroupedTile& t) {
    const QuantFormat& f = *t.format;
    if (f.group_size == 16) return grouped_passes<Layout<6, 16, false, false>>(t);            // Q6_K
    if (f.bits == 4 && !f.has_minimum) return grouped_passes<Layout<4, 32, false, true>>(t);  // Q4_0
    if (f.bits == 4 && f.scale_is_half) return grouped_passes<Layout<4, 32, true, true>>(t);  // Q4_1
    if (f.bits == 4) return grouped_passes<Layout<4, 32, true, false>>(t);                    // Q4_K
    if (f.offset == 128) return grouped_passes<Layout<8, 32, false, true>>(t);                // Q8_0
    if (!f.has_minimum) return grouped_passes<Layout<6, 32, false, true>>(t);                 // Q5_0
    if (f.scale_is_half) return grouped_passes<Layout<6, 32, true, true>>(t);                 // Q5_1
    grouped_passes<Layout<6, 32, true, false>>(t);                                            // Q5_K
}

static void finish_grouped(const float* sums, int rows, int columns, Epilogue epilogue, float* out, size_t out_stride) {
    LinearTile t{};
    t.mode = WeightMode::fp32;
    t.columns = columns;
    t.out = out;
    t.out_stride = out_stride;
    t.epilogue = epilogue;
    for (int r = 0; r < rows; ++r) finish_row(t, r, sums + r * kPanel);
}

}  // namespace hotseat::HOTSEAT_ISA
