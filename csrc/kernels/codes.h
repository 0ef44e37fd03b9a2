// Vectors of packed codes and of the integers that they are multiplied to, for each instruction set. All of it is
// exact.
//
// Codes: 64 bytes, 16 columns times 4 values of K. Words: 16 int32, or 16 pairs of int16, one for each column.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// Rows, and vectors of the half panel's two, that are worked on at once: what registers hold. A row alone takes both.
struct TileShape {
    int rows, vecs;
};

// Byte c of 16 to both halves of word c: in the low byte of a half, or in its high byte.
struct SpreadPattern {
    uint8_t low[64], high[64];
};
static constexpr SpreadPattern make_spread_pattern() {
    SpreadPattern pattern{};
    for (int i = 0; i < 64; ++i) {
        const uint8_t column = static_cast<uint8_t>(i / 4), none = 0x80;
        pattern.low[i] = i % 2 == 0 ? column : none;
        pattern.high[i] = i % 2 == 1 ? column : none;
    }
    return pattern;
}
alignas(64) static constexpr SpreadPattern kSpread = make_spread_pattern();

// One half of each pair to both.
struct CopyPattern {
    uint8_t low[64], high[64];
};
static constexpr CopyPattern make_copy_pattern() {
    CopyPattern pattern{};
    for (int i = 0; i < 64; ++i) {
        const uint8_t word = static_cast<uint8_t>(i % 16 / 4 * 4);
        pattern.low[i] = static_cast<uint8_t>(word + i % 2);
        pattern.high[i] = static_cast<uint8_t>(word + 2 + i % 2);
    }
    return pattern;
}
alignas(64) static constexpr CopyPattern kCopy = make_copy_pattern();

#if defined(HOTSEAT_AVX512)

static constexpr TileShape tile_shape(int) { return {6, 2}; }
static constexpr bool kMultipliesOffset = true;  // codes of 8 bits are multiplied with their offset
static constexpr int bits_that_matter(int) { return 8; }

struct Codes {
    __m512i v;
};
struct Words {
    __m512i v;
};
static inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void store_codes(uint8_t* p, Codes c) { _mm512_storeu_si512(p, c.v); }
static inline Codes keep_bits(Codes c, int mask) {
    return {_mm512_and_si512(c.v, _mm512_set1_epi8(static_cast<char>(mask)))};
}
static inline Codes either(Codes a, Codes b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kCount>
static inline Codes shift(Codes c) {  // up, or down where negative; bits of neighbours come along
    if constexpr (kCount > 0) return {_mm512_slli_epi16(c.v, kCount)};
    if constexpr (kCount < 0) return {_mm512_srli_epi16(c.v, -kCount)};
    return c;
}
static inline Codes look_up(const uint8_t* table, Codes c) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), c.v)};
}

static inline Words load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
static inline void store_words(void* p, Words w) { _mm512_storeu_si512(p, w.v); }
static inline Words set_words(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline Words add(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline Words sub(Words a, Words b) { return {_mm512_sub_epi32(a.v, b.v)}; }
static inline Words multiply(Words a, Words b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
static inline Words multiply_pairs(Words a, Words b) { return {_mm512_madd_epi16(a.v, b.v)}; }
static inline Words halves_down(Words a, int count) { return {_mm512_srl_epi16(a.v, _mm_cvtsi32_si128(count))}; }
static inline Words keep_halves(Words a, int mask) {
    return {_mm512_and_si512(a.v, _mm512_set1_epi16(static_cast<short>(mask)))};
}
static inline V16 to_float(Words a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline Words spread(const uint8_t* p, bool is_signed) {
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    if (is_signed) return {_mm512_srai_epi16(_mm512_shuffle_epi8(bytes, _mm512_load_si512(kSpread.high)), 8)};
    return {_mm512_shuffle_epi8(bytes, _mm512_load_si512(kSpread.low))};
}
static inline Words widen(const uint8_t* p, bool is_signed) {  // 32 bytes
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {is_signed ? _mm512_cvtepi8_epi16(bytes) : _mm512_cvtepu8_epi16(bytes)};
}
// 2^(byte - 128) of 16 bytes; what would be below 2^-126 is zero.
static inline V16 load_exponents(const uint8_t* p) {
    const __m128i less = _mm_subs_epu8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(1));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(less), 23))};
}
static inline Words copy_low(Words a) { return {_mm512_shuffle_epi8(a.v, _mm512_load_si512(kCopy.low))}; }
static inline Words copy_high(Words a) { return {_mm512_shuffle_epi8(a.v, _mm512_load_si512(kCopy.high))}; }
// What sums of products are multiplied with: a group's integer scale, in both halves, times its row's multiplier.
static inline Words factor_of(Words scale, int32_t multiplier) { return multiply_pairs(scale, set_words(multiplier)); }

#else

// Codes of 8 bits are multiplied by magnitude and sign, which takes two registers more.
static constexpr TileShape tile_shape(int bits) { return {bits == 8 ? 3 : 4, 1}; }
static constexpr bool kMultipliesOffset = false;
static constexpr int bits_that_matter(int bits) { return bits <= 4 ? 4 : bits; }

struct Codes {
    __m256i lo, hi;
};
struct Words {
    __m256i lo, hi;
};
template <class T>
static inline T load_both(const void* p) {
    const __m256i* from = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
template <class T>
static inline void store_both(void* p, const T& a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, a.hi);
}
static inline Codes load_codes(const uint8_t* p) { return load_both<Codes>(p); }
static inline void store_codes(uint8_t* p, Codes c) { store_both(p, c); }
static inline Codes keep_bits(Codes c, int mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(c.lo, m), _mm256_and_si256(c.hi, m)};
}
static inline Codes either(Codes a, Codes b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int kCount>
static inline Codes shift(Codes c) {
    if constexpr (kCount > 0) return {_mm256_slli_epi16(c.lo, kCount), _mm256_slli_epi16(c.hi, kCount)};
    if constexpr (kCount < 0) return {_mm256_srli_epi16(c.lo, -kCount), _mm256_srli_epi16(c.hi, -kCount)};
    return c;
}
static inline __m256i load_twice(const uint8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Codes look_up(const uint8_t* table, Codes c) {
    const __m256i values = load_twice(table);
    return {_mm256_shuffle_epi8(values, c.lo), _mm256_shuffle_epi8(values, c.hi)};
}

static inline Words load_words(const void* p) { return load_both<Words>(p); }
static inline void store_words(void* p, Words w) { store_both(p, w); }
static inline Words set_words(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline Words add(Words a, Words b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline Words sub(Words a, Words b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
static inline Words multiply(Words a, Words b) {
    return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
static inline Words multiply_pairs(Words a, Words b) {
    return {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
}
static inline Words halves_down(Words a, int count) {
    const __m128i n = _mm_cvtsi32_si128(count);
    return {_mm256_srl_epi16(a.lo, n), _mm256_srl_epi16(a.hi, n)};
}
static inline Words keep_halves(Words a, int mask) {
    const __m256i m = _mm256_set1_epi16(static_cast<short>(mask));
    return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
}
static inline V16 to_float(Words a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline Words shuffle(Words a, const uint8_t* pattern) {
    const __m256i* p = reinterpret_cast<const __m256i*>(pattern);
    return {_mm256_shuffle_epi8(a.lo, _mm256_load_si256(p)), _mm256_shuffle_epi8(a.hi, _mm256_load_si256(p + 1))};
}
static inline Words spread(const uint8_t* p, bool is_signed) {
    const __m256i bytes = load_twice(p);
    const Words words = shuffle({bytes, bytes}, is_signed ? kSpread.high : kSpread.low);
    if (is_signed) return {_mm256_srai_epi16(words.lo, 8), _mm256_srai_epi16(words.hi, 8)};
    return words;
}
static inline Words widen(const uint8_t* p, bool is_signed) {
    const __m128i* from = reinterpret_cast<const __m128i*>(p);
    const __m128i lo = _mm_loadu_si128(from), hi = _mm_loadu_si128(from + 1);
    if (is_signed) return {_mm256_cvtepi8_epi16(lo), _mm256_cvtepi8_epi16(hi)};
    return {_mm256_cvtepu8_epi16(lo), _mm256_cvtepu8_epi16(hi)};
}
// 2^(byte - 128) of 16 bytes; what would be below 2^-126 is zero.
static inline V16 load_exponents(const uint8_t* p) {
    const __m128i less = _mm_subs_epu8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(1));
    const __m256i lo = _mm256_slli_epi32(_mm256_cvtepu8_epi32(less), 23);
    const __m256i hi = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(less, 8)), 23);
    return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}
static inline Words copy_low(Words a) { return shuffle(a, kCopy.low); }
static inline Words copy_high(Words a) { return shuffle(a, kCopy.high); }
static inline Words factor_of(Words scale, int32_t multiplier) {
    const __m256i m = _mm256_set1_epi16(static_cast<short>(multiplier));
    return {_mm256_mullo_epi16(scale.lo, m), _mm256_mullo_epi16(scale.hi, m)};
}

#endif

}  // namespace hotseat::HOTSEAT_ISA
