// Weights as GGUF stores them times activations in groups of 32, see quant_format.h.
//
// Products are integers and exact. Where weights have scales of one level, these join once a group:
//
//     y += scale_a * (scale_w * sum(code * a)), then y += minimum_w * (scale_a * sum(a))
//
// Scales of two levels are integers themselves (n, and m of minima), as is the multiplier k of a group of activations,
// so that floating point joins once a unit of 256 values:
//
//     y += block_scale_a * (scale_w * sum(n * k * sum(code * a)) + minimum_w * sum(m * k * sum(a)))
//
// Sums stay within int32 (IQ4_XS: 8 * 32 * 16 * 32 * 127 * 127 < 2^31). One row or two are multiplied with codes
// that are unpacked in registers, more rows with an unpacked copy of 256 values of K, which stays in the nearest cache.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// One group of 32 values in each of some rows.
struct GroupRows {
    const uint8_t* first;
    size_t stride;

    const ActivationGroup& operator[](int row) const {
        return *reinterpret_cast<const ActivationGroup*>(first + row * stride);
    }
    int32_t word(int row, int step) const {
        int32_t word;
        __builtin_memcpy(&word, first + row * stride + step * 4, 4);
        return word;
    }
    int32_t half_sums(int row) const {
        int32_t word;
        __builtin_memcpy(&word, (*this)[row].half_sums, 4);
        return word;
    }
};

// Steps kFirst .. kEnd of one group: sums += codes * x, or with scales sums += scale * multiplier * (codes * x).
#if defined(HOTSEAT_AVX2)

static inline __m256i multiply_bytes(__m256i codes, __m256i x) { return _mm256_maddubs_epi16(codes, x); }

template <class A, bool kIsScaled, int kFirst, int kEnd, int kRows, int kVecs, class Source>
[[gnu::always_inline]] static inline void add_products(const Source& source, int group, int first, const GroupRows& x,
                                                       const Words (&scales)[kVecs], Words (&sums)[kRows][kVecs]) {
    // So many sums of two products fit in 16 bits: 8 of 15 * 127, 4 of 31 * 127, 2 of 63 * 127. Of codes in all of a
    // byte, which have an offset of 128, the magnitude is multiplied and the sign goes to the activation.
    constexpr int kBits = A::kBits, kSafe = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
    constexpr int kSteps = kEnd - kFirst < kSafe ? kEnd - kFirst : kSafe;
    unrolled<0, (kEnd - kFirst) / kSteps>([&](auto part) __attribute__((always_inline)) {
        Words products[kRows][kVecs];
        constexpr int kStart = kFirst + part.value * kSteps;
        unrolled<kStart, kStart + kSteps>([&](auto step) __attribute__((always_inline)) {
            for (int v = 0; v < kVecs; ++v) {
                Codes codes = source.template codes<step.value>(group, first + v), signs = codes;
                if constexpr (kBits == 8) {
                    const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
                    signs = {_mm256_xor_si256(codes.lo, offset), _mm256_xor_si256(codes.hi, offset)};
                    codes = {_mm256_abs_epi8(signs.lo), _mm256_abs_epi8(signs.hi)};
                }
                for (int r = 0; r < kRows; ++r) {
                    const __m256i values = _mm256_set1_epi32(x.word(r, step.value));
                    Words one{values, values};
                    if constexpr (kBits == 8)
                        one = {_mm256_sign_epi8(values, signs.lo), _mm256_sign_epi8(values, signs.hi)};
                    one = {multiply_bytes(codes.lo, one.lo), multiply_bytes(codes.hi, one.hi)};
                    Words& all = products[r][v];
                    if constexpr (step.value == kStart)
                        all = one;
                    else
                        all = {_mm256_add_epi16(all.lo, one.lo), _mm256_add_epi16(all.hi, one.hi)};
                }
            }
        });
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVecs; ++v) {
                const __m256i ones = _mm256_set1_epi16(1);
                Words factor{ones, ones};
                if constexpr (kIsScaled) factor = factor_of(scales[v], x[r].multiplier);
                sums[r][v] = add(sums[r][v], multiply_pairs(products[r][v], factor));
            }
    });
}

#else

template <class A, bool kIsScaled, int kFirst, int kEnd, int kRows, int kVecs, class Source>
[[gnu::always_inline]] static inline void add_products(const Source& source, int group, int first, const GroupRows& x,
                                                       const Words (&scales)[kVecs], Words (&sums)[kRows][kVecs]) {
    Words products[kRows][kVecs];
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVecs; ++v) products[r][v] = kIsScaled ? set_words(0) : sums[r][v];
    unrolled<kFirst, kEnd>([&](auto step) __attribute__((always_inline)) {
        Codes codes[kVecs];
        for (int v = 0; v < kVecs; ++v) codes[v] = source.template codes<step.value>(group, first + v);
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVecs; ++v)
                multiply_add_int8(products[r][v].v, codes[v].v, _mm512_set1_epi32(x.word(r, step.value)));
    });
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVecs; ++v) {
            if constexpr (kIsScaled)
                sums[r][v] = add(sums[r][v], multiply(products[r][v], factor_of(scales[v], x[r].multiplier)));
            else
                sums[r][v] = products[r][v];
        }
}

#endif

// kRows rows times kVecs vectors of 256 values of K, with scales of two levels: y += .
template <class A, int kRows, int kVecs, class Source>
[[gnu::always_inline]] static inline void add_unit(const Source& source, int first, GroupRows x,
                                                   V16 (&y)[kRows][kVecs]) {
    constexpr bool kHasSides = A::kHasMinimum || A::kAddsOffset;
    Words products[kRows][kVecs], sides[kRows][kVecs];
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVecs; ++v) products[r][v] = sides[r][v] = set_words(0);
    const GroupRows start = x;
    for (int g = 0; g < 8; ++g, x.first += sizeof(ActivationGroup)) {
        Words scales[2][kVecs], sums[kVecs];
        for (int v = 0; v < kVecs; ++v) {
            const IntegerScales integers = source.integers(g, first + v);
            scales[0][v] = integers.products[0], scales[1][v] = integers.products[1], sums[v] = integers.sums;
        }
        if constexpr (A::kGroup == 32) {
            add_products<A, true, 0, 8>(source, g, first, x, scales[0], products);
        } else {
            add_products<A, true, 0, 4>(source, g, first, x, scales[0], products);
            add_products<A, true, 4, 8>(source, g, first, x, scales[1], products);
        }
        if constexpr (kHasSides)
            for (int r = 0; r < kRows; ++r)
                for (int v = 0; v < kVecs; ++v)
                    sides[r][v] = add(sides[r][v], multiply_pairs(sums[v], set_words(x.half_sums(r))));
    }
    for (int v = 0; v < kVecs; ++v) {
        const V16 scale = load_half(source.block + (first + v) * 32);
        V16 minimum{};
        if constexpr (A::kHasMinimum) minimum = load_half(source.block + kHalfPanel * 2 + (first + v) * 32);
        for (int r = 0; r < kRows; ++r) {
            Words sum = products[r][v];
            if constexpr (A::kAddsOffset) sum = sub(sum, multiply(sides[r][v], set_words(source.offset)));
            V16 value = mul(to_float(sum), scale);
            if constexpr (A::kHasMinimum) value = fma(to_float(sides[r][v]), minimum, value);
            y[r][v] = fma(value, set1(start[r].block_scale), y[r][v]);
        }
    }
}

// The same with scales of one level, in up to eight groups.
template <class A, int kRows, int kVecs, class Source>
[[gnu::always_inline]] static inline void add_groups(const Source& source, int num_groups, int first, GroupRows x,
                                                     V16 (&y)[kRows][kVecs]) {
    for (int g = 0; g < num_groups; ++g, x.first += sizeof(ActivationGroup)) {
        Words sums[kRows][kVecs], scales[kVecs];
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVecs; ++v) sums[r][v] = set_words(A::kAddsOffset ? -source.offset * x[r].sum : 0);
        add_products<A, false, 0, 8>(source, g, first, x, scales, sums);
        for (int v = 0; v < kVecs; ++v) {
            const V16 scale = source.scale(g, first + v);
            V16 minimum{};
            if constexpr (A::kHasMinimum) minimum = source.minimum(g, first + v);
            for (int r = 0; r < kRows; ++r) {
                y[r][v] = fma(mul(to_float(sums[r][v]), scale), set1(x[r].scale), y[r][v]);
                if constexpr (A::kHasMinimum) y[r][v] = fma(minimum, set1(x[r].scaled_sum), y[r][v]);
            }
        }
    }
}

// kRows rows times up to 256 values of K of one half panel: sums += .
template <class A, int kRows, class Source>
static void add_block(const Source& source, int num_groups, const GroupRows& x, float* sums) {
    constexpr int kVecs = kRows == 1 ? 2 : A::kTile.vecs;
    for (int first = 0; first < 2; first += kVecs) {
        V16 y[kRows][kVecs];
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVecs; ++v) y[r][v] = load(sums + r * kPanel + (first + v) * 16);
        if constexpr (A::kIsTwoLevel)
            add_unit<A>(source, first, x, y);
        else
            add_groups<A>(source, num_groups, first, x, y);
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVecs; ++v) store(sums + r * kPanel + (first + v) * 16, y[r][v]);
    }
}

// Passes over 256 values of K, of kFew to kMany rows each and of nearly equal numbers. Meanwhile the next values are
// fetched.
template <class A, int kFew, int kMany, class Source>
[[gnu::always_inline]] static inline void add_passes(const GroupedTile& t, const Source& source, int num_groups,
                                                     size_t block_bytes, GroupRows x) {
    const int num_passes = (t.rows + kMany - 1) / kMany;
    const uint8_t* fetch = source.block + block_bytes;
    const size_t bytes = (block_bytes / num_passes + 63) / 64 * 64;
    const uint8_t* first = x.first;
    for (int pass = 0; pass < num_passes; ++pass, fetch += bytes) {
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(fetch + i, 0, 2);
        const int row = t.rows * pass / num_passes, count = t.rows * (pass + 1) / num_passes - row;
        x.first = first + row * x.stride;
        unrolled<kFew, kMany + 1>([&](auto rows) __attribute__((always_inline)) {
            if (count == rows.value) add_block<A, rows.value>(source, num_groups, x, t.sums + row * kPanel);
        });
    }
}

static constexpr int kRowsInRegisters = 2;  // so few rows are multiplied with codes that are unpacked in registers

template <class L>
static void grouped_half(const GroupedTile& t) {
    using A = typename L::Math;
    constexpr int kMany = A::kTile.rows, kFew = kMany < 4 ? 2 : kMany / 2;
    for (int r = 0; r < t.rows; ++r)
        for (int v = 0; v < 2; ++v) store(t.sums + r * kPanel + v * 16, set1(0.0f));
    const uint8_t* block = t.half;
    for (int g = 0; g < t.num_groups; g += 8, block += L::kBlockBytes) {
        const int num_groups = t.num_groups - g < 8 ? t.num_groups - g : 8;
        const GroupRows x{t.activations + g * sizeof(ActivationGroup), t.activation_stride};
        const Packed<L> packed{block};
        if constexpr (L::kBits == 8) {
            add_passes<A, 1, kMany>(t, packed, num_groups, L::kBlockBytes, x);
        } else if (t.rows <= kRowsInRegisters) {
            add_passes<A, 1, kRowsInRegisters>(t, packed, num_groups, L::kBlockBytes, x);
        } else {
            Unpacked<A> unpacked;
            unpacked.assign(packed, num_groups);
            add_passes<A, kFew, kMany>(t, unpacked, num_groups, L::kBlockBytes, x);
        }
    }
}

static void grouped_sums(const GroupedTile& t) {
    switch (packed_kind(t.kind)) {
        case Kind::Q4_0:
            return grouped_half<Layout<Kind::Q4_0>>(t);
        case Kind::Q4_1:
            return grouped_half<Layout<Kind::Q4_1>>(t);
        case Kind::Q5_0:
            return grouped_half<Layout<Kind::Q5_0>>(t);
        case Kind::Q5_1:
            return grouped_half<Layout<Kind::Q5_1>>(t);
        case Kind::Q2_K:
            return grouped_half<Layout<Kind::Q2_K>>(t);
        case Kind::Q3_K:
            return grouped_half<Layout<Kind::Q3_K>>(t);
        case Kind::Q4_K:
            return grouped_half<Layout<Kind::Q4_K>>(t);
        case Kind::Q5_K:
            return grouped_half<Layout<Kind::Q5_K>>(t);
        case Kind::Q6_K:
            return grouped_half<Layout<Kind::Q6_K>>(t);
        case Kind::IQ4_NL:
            return grouped_half<Layout<Kind::IQ4_NL>>(t);
        case Kind::IQ4_XS:
            return grouped_half<Layout<Kind::IQ4_XS>>(t);
        case Kind::MXFP4:
            return grouped_half<Layout<Kind::MXFP4>>(t);
        default:
            return grouped_half<Layout<Kind::Q8_0>>(t);
    }
}

}  // namespace hotseat::HOTSEAT_ISA
