// Where the kernels of grouped.h read codes and scales: as they are packed, or unpacked for several passes.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// How codes and scales are multiplied, which several kinds share. kBitsValue: of codes, as far as it matters.
template <bool kIsTwoLevelValue, int kGroupValue, bool kHasMinimumValue, bool kAddsOffsetValue, int kBitsValue>
struct Arithmetic {
    static constexpr bool kIsTwoLevel = kIsTwoLevelValue, kHasMinimum = kHasMinimumValue;
    static constexpr bool kAddsOffset = kAddsOffsetValue;
    static constexpr int kGroup = kGroupValue, kBits = kBitsValue;
    static constexpr TileShape kTile = tile_shape(kBits);
};

template <Kind kKindValue>
struct Layout {
    static constexpr Kind kKind = kKindValue;
    static constexpr QuantFormat kFormat = format_of(kKind);
    static constexpr int kBits = kFormat.bits, kGroup = kFormat.group_size;
    static constexpr bool kHasMinimum = kFormat.has_minimum, kIsTwoLevel = kFormat.is_two_level;
    static constexpr size_t kCodeStart = kFormat.code_start(), kUnitBytes = kFormat.unit_bytes();
    static constexpr size_t kBlockBytes = kIsTwoLevel ? kUnitBytes : 8 * kUnitBytes;  // of 256 values of K
    static constexpr size_t kScaleStart = kHalfPanel * 2 * (kHasMinimum ? 2 : 1);     // of the integers
    static constexpr bool kAddsOffset = kFormat.offset != 0 && (kMultipliesOffset || kFormat.bits_in_use != 8);
    using Math = Arithmetic<kIsTwoLevel, kGroup, kHasMinimum, kAddsOffset, bits_that_matter(kFormat.bits_in_use)>;
};

alignas(16) static constexpr uint8_t kIq4Values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                       129, 141, 153, 166, 181, 197, 217, 241};  // with offset 128
alignas(16) static constexpr uint8_t kMxfp4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// f(0), f(1) .. with constants.
template <int kValue>
struct Constant {
    static constexpr int value = kValue;
};
template <int kFirst, int kEnd, class F>
[[gnu::always_inline]] static inline void unrolled(F&& f) {
    if constexpr (kFirst < kEnd) {
        f(Constant<kFirst>{});
        unrolled<kFirst + 1, kEnd>(f);
    }
}

// Step kStep of eight in planes of 32 values of K: 16 columns times 4 values.
template <class L, int kStep>
[[gnu::always_inline]] static inline Codes unpack(const uint8_t* planes, int vector) {
    const auto at = [&](int plane_start, int i) __attribute__((always_inline)) {
        return load_codes(planes + plane_start + i * kHalfPanel * 4 + vector * 64);
    };
    constexpr int kBits = L::kBits, kBitPlane = kHalfPanel * 4;  // bytes of one bit
    if constexpr (kBits == 8) {
        return at(0, kStep);
    } else if constexpr (kBits < 4) {
        const Codes low = keep_bits(shift<-2 * (kStep % 4)>(at((kBits - 2) * kBitPlane, kStep / 4)), 3);
        if constexpr (kBits == 2) return low;
        return either(low, keep_bits(shift<2 - kStep>(at(0, 0)), 4));
    } else {
        const Codes low = keep_bits(shift<kStep % 2 == 0 ? 0 : -4>(at((kBits - 4) * kBitPlane, kStep / 2)), 15);
        if constexpr (L::kKind == Kind::MXFP4) return look_up(kMxfp4Values, low);
        if constexpr (L::kFormat.bits_in_use == 8) return look_up(kIq4Values, low);
        if constexpr (kBits == 5) return either(low, keep_bits(shift<4 - kStep>(at(0, 0)), 16));
        if constexpr (kBits == 6) return either(low, keep_bits(shift<4 - kStep % 4 * 2>(at(0, kStep / 4)), 48));
        return low;
    }
}

// Integers of two-level scales of 32 values of K, in pairs: what sums of products are multiplied with, of each group
// in both halves, and what sums of activations are: minima, or the scales again where codes have an offset.
struct IntegerScales {
    Words products[2];
    Words sums;
};

// Where codes and scales of 256 values of K are read.
template <class L>
struct Packed {
    const uint8_t* block;
    static constexpr int offset = L::kFormat.offset;

    template <int kStep>
    Codes codes(int group, int vector) const {
        const size_t start =
            L::kIsTwoLevel ? L::kCodeStart + group * L::kFormat.plane_bytes() : group * L::kUnitBytes + L::kCodeStart;
        return unpack<L, kStep>(block + start, vector);
    }
    IntegerScales integers(int group, int vector) const {
        const uint8_t* p = block + L::kScaleStart;
        constexpr bool kIsSigned = L::kFormat.has_signed_scales;
        if constexpr (L::kGroup == 32) {
            const Words scale = spread(p + group * kHalfPanel + vector * 16, kIsSigned);
            if constexpr (!L::kHasMinimum) return {{scale, scale}, scale};
            return {{scale, scale}, spread(p + (8 + group) * kHalfPanel + vector * 16, false)};
        } else {
            Words scales = widen(p + group * kHalfPanel * 2 + vector * 32, kIsSigned);
            Words sums = scales;
            if constexpr (L::kHasMinimum) {
                sums = halves_down(scales, 4);
                scales = keep_halves(scales, 15);
            }
            return {{copy_low(scales), copy_high(scales)}, sums};
        }
    }
    V16 scale(int group, int vector) const {
        const uint8_t* p = block + group * L::kUnitBytes;
        if constexpr (L::kFormat.has_exponents()) return load_exponents(p + vector * 16);
        return load_half(p + vector * 32);
    }
    V16 minimum(int group, int vector) const {
        return load_half(block + group * L::kUnitBytes + kHalfPanel * 2 + vector * 32);
    }
};

// The same, unpacked for several passes.
template <class A>
struct alignas(64) Unpacked {
    uint8_t all_codes[8][8][2][64];
    uint8_t all_scales[8][2][3][64];
    const uint8_t* block;
    int offset;

    template <class L>
    void assign(const Packed<L>& from, int num_groups) {
        block = from.block;
        offset = from.offset;
        for (int g = 0; g < num_groups; ++g)
            for (int v = 0; v < 2; ++v) {
                unrolled<0, 8>([&](auto step) __attribute__((always_inline)) {
                    store_codes(all_codes[g][step.value][v], from.template codes<step.value>(g, v));
                });
                if constexpr (A::kIsTwoLevel) {
                    const IntegerScales scales = from.integers(g, v);
                    store_words(all_scales[g][v][0], scales.products[0]);
                    store_words(all_scales[g][v][1], scales.products[1]);
                    store_words(all_scales[g][v][2], scales.sums);
                } else {
                    store(reinterpret_cast<float*>(all_scales[g][v][0]), from.scale(g, v));
                    if constexpr (A::kHasMinimum)
                        store(reinterpret_cast<float*>(all_scales[g][v][1]), from.minimum(g, v));
                }
            }
    }
    template <int kStep>
    Codes codes(int group, int vector) const {
        return load_codes(all_codes[group][kStep][vector]);
    }
    IntegerScales integers(int group, int vector) const {
        const auto& scales = all_scales[group][vector];
        return {{load_words(scales[0]), load_words(scales[1])}, load_words(scales[2])};
    }
    V16 scale(int group, int vector) const {
        return load(reinterpret_cast<const float*>(all_scales[group][vector][0]));
    }
    V16 minimum(int group, int vector) const {
        return load(reinterpret_cast<const float*>(all_scales[group][vector][1]));
    }
};

}  // namespace hotseat::HOTSEAT_ISA
