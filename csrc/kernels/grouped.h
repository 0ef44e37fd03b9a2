// Weights as GGUF stores them, in groups with a scale (and a minimum) of their own, times activations in groups of 32.
//
//     w = scale * (code - offset)        or        w = scale * code + minimum
//
// Codes are integers of 4 or 8 bits, the products are integers and exact; scales join once a group:
//
//     y += (scale_w * scale_a) * sum(code * a), then y += minimum_w * (scale_a * sum(a))
//
// A half panel is 32 columns over all groups, each group: scales [32], minima [32] where there are any, codes. A vector
// of codes holds 16 columns times 4 values; with 4 bits its low halves are one step of K and its high halves the next.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static inline V16 load_scales(const GroupFormat& f, const uint8_t* p, int vector) {
    if (!f.scale_is_half) return load(reinterpret_cast<const float*>(p) + vector * 16);
    return load_half(p + vector * 32);
}

#if defined(HOTSEAT_AVX512)

struct Sums {
    __m512i v;
};
static inline Sums start_sums(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline V16 to_float(Sums s) { return {_mm512_cvtepi32_ps(s.v)}; }
template <int kBits>
static inline void add_codes(const uint8_t* vector, bool upper, const uint8_t* a, Sums& sums) {
    __m512i codes = _mm512_loadu_si512(vector);
    if constexpr (kBits == 4)
        codes = _mm512_and_si512(upper ? _mm512_srli_epi16(codes, 4) : codes, _mm512_set1_epi8(15));
    int32_t word;
    __builtin_memcpy(&word, a, 4);
    multiply_add_int8(sums.v, codes, _mm512_set1_epi32(word));
}

#elif defined(HOTSEAT_AVX2)

struct Sums {
    __m256i lo, hi;
};
static inline Sums start_sums(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline V16 to_float(Sums s) { return {_mm256_cvtepi32_ps(s.lo), _mm256_cvtepi32_ps(s.hi)}; }
static inline __m256i multiply_codes(__m256i codes, __m256i x) {
    // Two products of 255 * 127 do not fit in 16 bits: even and odd values are widened and multiplied apart.
    const __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(codes, 8);
    const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), x_odd = _mm256_srai_epi16(x, 8);
    return _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd));
}
template <int kBits>
static inline void add_codes(const uint8_t* vector, bool upper, const uint8_t* a, Sums& sums) {
    __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vector));
    __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vector + 32));
    int32_t word;
    __builtin_memcpy(&word, a, 4);
    const __m256i x = _mm256_set1_epi32(word);
    if constexpr (kBits == 4) {
        const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
        lo = _mm256_and_si256(upper ? _mm256_srli_epi16(lo, 4) : lo, mask);
        hi = _mm256_and_si256(upper ? _mm256_srli_epi16(hi, 4) : hi, mask);
        // 15 * 127 * 2 fits in 16 bits.
        sums.lo = _mm256_add_epi32(sums.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(lo, x), ones));
        sums.hi = _mm256_add_epi32(sums.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(hi, x), ones));
    } else {
        sums.lo = _mm256_add_epi32(sums.lo, multiply_codes(lo, x));
        sums.hi = _mm256_add_epi32(sums.hi, multiply_codes(hi, x));
    }
}

#else

struct Sums {
    int32_t lane[16];
};
static inline Sums start_sums(int32_t x) {
    Sums s;
    for (int i = 0; i < 16; ++i) s.lane[i] = x;
    return s;
}
static inline V16 to_float(Sums s) { return load_int32(s.lane); }
template <int kBits>
static inline void add_codes(const uint8_t* vector, bool upper, const uint8_t* a, Sums& sums) {
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 4; ++k) {
            int code = vector[i * 4 + k];
            if (kBits == 4) code = upper ? code >> 4 : code & 15;
            sums.lane[i] += code * static_cast<int8_t>(a[k]);
        }
}

#endif

// kRows rows times one half panel: sums[r * kHalfPanel + column].
template <int kBits, int kRows>
static void grouped_rows(const GroupedTile& t, const uint8_t* a, float* out) {
    const GroupFormat& f = *t.format;
    const int n = t.num_groups * f.group, steps = f.group / 4;
    const size_t scale_bytes = kHalfPanel * (f.scale_is_half ? 2 : 4);
    const uint8_t* p = t.half;
    V16 y[kRows][2];
    for (int r = 0; r < kRows; ++r) y[r][0] = y[r][1] = set1(0.0f);
    for (int g = 0; g < t.num_groups; ++g, p += f.bytes_per_group()) {
        const uint8_t* codes = p + scale_bytes * (f.has_minimum ? 2 : 1);
        float a_scale[kRows], a_sum[kRows];
        Sums sums[kRows][2];
        for (int r = 0; r < kRows; ++r) {
            const uint8_t* row = a + r * t.activation_stride;
            const float* scales = reinterpret_cast<const float*>(row + n);
            const int32_t* row_sums = reinterpret_cast<const int32_t*>(row + n + n / 32 * 4);
            const int32_t sum = f.group == 32 ? row_sums[2 * g] + row_sums[2 * g + 1] : row_sums[g];
            a_scale[r] = scales[g * f.group / 32];
            a_sum[r] = a_scale[r] * static_cast<float>(sum);
            sums[r][0] = sums[r][1] = start_sums(-f.offset * sum);
        }
        for (int s = 0; s < steps; ++s) {
            const uint8_t* vector = codes + (kBits == 4 ? s / 2 : s) * kHalfPanel * 4;
            for (int r = 0; r < kRows; ++r) {
                const uint8_t* x = a + r * t.activation_stride + g * f.group + s * 4;
                add_codes<kBits>(vector, s % 2 == 1, x, sums[r][0]);
                add_codes<kBits>(vector + 64, s % 2 == 1, x, sums[r][1]);
            }
        }
        for (int c = 0; c < 2; ++c) {
            const V16 scale = load_scales(f, p, c);
            for (int r = 0; r < kRows; ++r) y[r][c] = fma(to_float(sums[r][c]), mul(scale, set1(a_scale[r])), y[r][c]);
            if (!f.has_minimum) continue;
            const V16 minimum = load_scales(f, p + scale_bytes, c);
            for (int r = 0; r < kRows; ++r) y[r][c] = fma(minimum, set1(a_sum[r]), y[r][c]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        store(out + r * kHalfPanel, y[r][0]);
        store(out + r * kHalfPanel + 16, y[r][1]);
    }
}

static void grouped_sums(const GroupedTile& t) {
    constexpr int kRows = kTileRows < 4 ? 2 : 4;
    const bool is_four = t.format->bits == 4;
    int row = 0;
    for (; row + kRows <= t.rows; row += kRows) {
        const uint8_t* a = t.activations + row * t.activation_stride;
        float* out = t.sums + row * kHalfPanel;
        is_four ? grouped_rows<4, kRows>(t, a, out) : grouped_rows<8, kRows>(t, a, out);
    }
    for (; row < t.rows; ++row) {
        const uint8_t* a = t.activations + row * t.activation_stride;
        float* out = t.sums + row * kHalfPanel;
        is_four ? grouped_rows<4, 1>(t, a, out) : grouped_rows<8, 1>(t, a, out);
    }
}

// Outputs of one panel from the sums of its two halves.
static void finish_grouped(const float* left, const float* right, int rows, int columns, Epilogue epilogue, float* out,
                           size_t out_stride) {
    LinearTile t{};
    t.mode = WeightMode::fp32;
    t.columns = columns;
    t.out = out;
    t.out_stride = out_stride;
    t.epilogue = epilogue;
    alignas(64) float sums[kPanel];
    for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < kHalfPanel; c += 16) {
            store(sums + c, load(left + r * kHalfPanel + c));
            store(sums + kHalfPanel + c, load(right + r * kHalfPanel + c));
        }
        finish_row(t, r, sums);
    }
}

}  // namespace hotseat::HOTSEAT_ISA
