// Sixteen float lanes in two AVX2 registers. Needs AVX2, FMA, F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace hotseat::HOTSEAT_ISA {

struct V16 {
    __m256 lo, hi;
};

inline constexpr int kTileRows = 3;
inline constexpr int kTileVecs = 2;
inline constexpr int kPairRows = 4;
constexpr int pair_vecs(int) { return 1; }

static inline V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, V16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static inline V16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline V16 add(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline V16 sub(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline V16 mul(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline V16 div(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline V16 fma(V16 a, V16 b, V16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline V16 min(V16 a, V16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline V16 abs(V16 a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
static inline V16 round_even(V16 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
static inline V16 floor(V16 a) {
    constexpr int mode = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
static inline V16 first_n(int n, V16 a, V16 b) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index));
    const __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), index));
    return {_mm256_blendv_ps(b.lo, a.lo, lo), _mm256_blendv_ps(b.hi, a.hi, hi)};
}
static inline V16 where_less(V16 x, V16 limit, V16 a, V16 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ))};
}
static inline __m256 scale_exponent_half(__m256 mantissa, __m256 exponent) {
    const __m256i shift = _mm256_slli_epi32(_mm256_cvttps_epi32(exponent), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(mantissa), shift));
}
static inline V16 scale_exponent(V16 mantissa, V16 exponent) {
    return {scale_exponent_half(mantissa.lo, exponent.lo), scale_exponent_half(mantissa.hi, exponent.hi)};
}
template <int kStride>
static inline V16 swap_lanes(V16 a) {
    if constexpr (kStride == 8) return {a.hi, a.lo};
    if constexpr (kStride == 4) return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
    if constexpr (kStride == 2) return {_mm256_permute_ps(a.lo, 0x4e), _mm256_permute_ps(a.hi, 0x4e)};
    if constexpr (kStride == 1) return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
}
static inline float reduce_add(V16 a) {
    const __m256 half = _mm256_add_ps(a.lo, a.hi);
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
static inline float reduce_max(V16 a) {
    const __m256 half = _mm256_max_ps(a.lo, a.hi);
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}
static inline V16 load_half(const uint8_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
static inline __m256i bf16_half(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    rounded = _mm256_srli_epi32(rounded, 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
}
static inline void store_bf16(uint16_t* p, V16 a) {
    __m256i packed = _mm256_packus_epi32(bf16_half(a.lo), bf16_half(a.hi));
    packed = _mm256_permute4x64_epi64(packed, 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

struct Pairs {
    __m256i lo, hi;
};
static inline Pairs load_pairs(const void* p) {
    const __m256i* words = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
static inline Pairs set_pairs(uint32_t word) {
    const __m256i words = _mm256_set1_epi32(static_cast<int>(word));
    return {words, words};
}
static inline Pairs even_halves(Pairs a) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
static inline __m256 odd_values(__m256i a) {
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
static inline __m256 even_values(__m256i a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
static inline V16 dot_bf16(V16 acc, Pairs a, Pairs b) {
    const __m256 lo = _mm256_fmadd_ps(odd_values(a.lo), odd_values(b.lo), acc.lo);
    const __m256 hi = _mm256_fmadd_ps(odd_values(a.hi), odd_values(b.hi), acc.hi);
    return {_mm256_fmadd_ps(even_values(a.lo), even_values(b.lo), lo),
            _mm256_fmadd_ps(even_values(a.hi), even_values(b.hi), hi)};
}
static inline void store_low_halves(uint16_t* p, V16 a) {
    const Pairs low = even_halves({_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)});
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low.lo, low.hi), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
static inline V16 widen_low_halves(V16 a) {
    return {even_values(_mm256_castps_si256(a.lo)), even_values(_mm256_castps_si256(a.hi))};
}

static inline void store_int8(int8_t* p, V16 a) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
static inline void store_int32(int32_t* p, V16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(a.lo));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvtps_epi32(a.hi));
}
static inline V16 load_int32(const int32_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
            _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8)))};
}

}  // namespace hotseat::HOTSEAT_ISA
