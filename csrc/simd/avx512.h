// Sixteen float lanes in one AVX-512 register. Needs F, BW, DQ, VL.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace hotseat::HOTSEAT_ISA {

struct V16 {
    __m512 v;
};

inline constexpr int kTileRows = 6;
inline constexpr int kTileVecs = 4;
inline constexpr int kPairRows = 8;
constexpr int pair_vecs(int rows) { return rows > 4 ? 2 : 4; }

static inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
static inline V16 set1(float x) { return {_mm512_set1_ps(x)}; }
static inline V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline V16 abs(V16 a) { return {_mm512_abs_ps(a.v)}; }
static inline V16 round_even(V16 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline V16 floor(V16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
static inline V16 first_n(int n, V16 a, V16 b) {
    const __mmask16 mask = n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
    return {_mm512_mask_blend_ps(mask, b.v, a.v)};
}
static inline V16 where_less(V16 x, V16 limit, V16 a, V16 b) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), b.v, a.v)};
}
static inline V16 scale_exponent(V16 mantissa, V16 exponent) {
    const __m512i shift = _mm512_slli_epi32(_mm512_cvttps_epi32(exponent.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(mantissa.v), shift))};
}
template <int kStride>
static inline V16 swap_lanes(V16 a) {
    if constexpr (kStride == 8) return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
    if constexpr (kStride == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
    if constexpr (kStride == 2) return {_mm512_permute_ps(a.v, 0x4e)};
    if constexpr (kStride == 1) return {_mm512_permute_ps(a.v, 0xb1)};
}
static inline float reduce_add(V16 a) {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
static inline float reduce_max(V16 a) {
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}
static inline V16 load_half(const uint8_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store_bf16(uint16_t* p, V16 a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_srli_epi32(rounded, 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
}

struct Pairs {
    __m512i v;
};
static inline Pairs load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
static inline Pairs set_pairs(uint32_t word) { return {_mm512_set1_epi32(static_cast<int>(word))}; }
static inline Pairs even_halves(Pairs a) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(0xffff))}; }
#if defined(HOTSEAT_AVX512BF16)
// gcc 12 spills the accumulators of the intrinsic; this form keeps them in registers.
static inline V16 dot_bf16(V16 acc, Pairs a, Pairs b) {
    __m512 kept = acc.v;
    asm("vdpbf16ps %2, %1, %0" : "+v"(kept) : "v"(a.v), "v"(b.v));
    return {kept};
}
#else
static inline __m512 odd_values(Pairs a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
static inline __m512 even_values(Pairs a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16)); }
static inline V16 dot_bf16(V16 acc, Pairs a, Pairs b) {
    const __m512 odd = _mm512_fmadd_ps(odd_values(a), odd_values(b), acc.v);
    return {_mm512_fmadd_ps(even_values(a), even_values(b), odd)};
}
#endif
static inline void store_low_halves(uint16_t* p, V16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_castps_si512(a.v)));
}
static inline V16 widen_low_halves(V16 a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))};
}

static inline void store_int8(int8_t* p, V16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
static inline void store_int32(int32_t* p, V16 a) { _mm512_storeu_si512(p, _mm512_cvtps_epi32(a.v)); }
static inline V16 load_int32(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }

}  // namespace hotseat::HOTSEAT_ISA
