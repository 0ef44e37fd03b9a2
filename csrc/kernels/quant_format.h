// How grouped weights are packed: the codes and scales of their GGUF file, with as many bits, in another order.
//
//     w = scale * (code - offset)        or        w = scale * code + minimum
//
// A half panel is 32 columns over all K, cut into units of 32 values of K, or of 256 where scales have two levels: then
// a group's scale (minimum) is the unit's fp16 times an integer of its own. A unit holds
//
//     scales [32 columns], minima [32]                      fp16; MXFP4: exponents in a byte
//     integers of two-level scales [8][32], minima [8][32]  groups of 16: [8][32][2], Q2_K's minima in the same bytes
//     planes of codes of each 32 values                     upper bits first
//
// A plane is cut into vectors of 64 bytes: 16 columns times 4 values, the first 16 columns before the others. Where a
// byte holds several values of a column, their lowest bits are of the first four values of K, and so on.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hotseat {

// How a tensor is stored, named as GGML names it.
enum class Kind : int {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
};

inline constexpr int kHalfPanel = 32;  // columns that share a storage format

struct QuantFormat {
    int bits;        // of a packed code: 2, 3, 4, 5, 6 or 8
    int group_size;  // values of K that share a scale: 16 or 32
    int offset;      // 0 when there is a minimum
    bool has_minimum;
    bool is_two_level;
    bool has_signed_scales;  // of two levels
    int bits_in_use;         // of a code when it is multiplied: more than `bits` where it is looked up in a table

    constexpr int unit() const { return is_two_level ? 256 : 32; }
    constexpr size_t plane_bytes() const { return static_cast<size_t>(kHalfPanel) * 32 * bits / 8; }  // of 32 values
    constexpr bool has_exponents() const { return !is_two_level && offset == 12; }                    // MXFP4
    constexpr bool shares_scale_bytes() const { return group_size == 16 && has_minimum; }             // Q2_K
    constexpr size_t code_start() const {
        const size_t scales = kHalfPanel * (has_exponents() ? 1 : 2) * (has_minimum ? 2 : 1);
        if (!is_two_level) return scales;
        return scales + kHalfPanel * (256 / group_size) * (has_minimum && !shares_scale_bytes() ? 2 : 1);
    }
    constexpr size_t unit_bytes() const { return code_start() + unit() / 32 * plane_bytes(); }
    bool operator==(const QuantFormat&) const = default;
};

// F32, F16 and BF16 have no groups: the nearest Q8_0 is multiplied.
constexpr QuantFormat format_of(Kind kind) {
    switch (kind) {
        case Kind::Q4_0:
            return {4, 32, 8, false, false, false, 4};
        case Kind::Q4_1:
            return {4, 32, 0, true, false, false, 4};
        case Kind::Q5_0:
            return {5, 32, 16, false, false, false, 5};
        case Kind::Q5_1:
            return {5, 32, 0, true, false, false, 5};
        case Kind::IQ4_NL:
            return {4, 32, 128, false, false, false, 8};
        case Kind::MXFP4:
            return {4, 32, 12, false, false, false, 5};
        case Kind::Q2_K:
            return {2, 16, 0, true, true, false, 2};
        case Kind::Q3_K:
            return {3, 16, 4, false, true, true, 3};
        case Kind::Q4_K:
            return {4, 32, 0, true, true, false, 4};
        case Kind::Q5_K:
            return {5, 32, 0, true, true, false, 5};
        case Kind::Q6_K:
            return {6, 16, 32, false, true, true, 6};
        case Kind::IQ4_XS:
            return {4, 32, 128, false, true, true, 8};
        case Kind::F32:
        case Kind::F16:
        case Kind::BF16:
        case Kind::Q8_0:
            break;
    }
    return {8, 32, 128, false, false, false, 8};
}

constexpr Kind packed_kind(Kind kind) {
    return kind == Kind::F32 || kind == Kind::F16 || kind == Kind::BF16 ? Kind::Q8_0 : kind;
}

// The most that one activation group's scale may be divided by: see ActivationGroup.
inline constexpr int kMultiplierLevels = 16;

// 32 values of an activation row beside grouped weights: x = scale * code. Scales of 256 values are multiples of one:
// scale = block_scale * multiplier, so that two-level weights need floating point once in 256 values.
struct ActivationGroup {
    int8_t codes[32];
    float scale;
    float scaled_sum;      // scale * sum
    float block_scale;     // of the 256 values
    int32_t multiplier;    // 1 .. kMultiplierLevels
    int32_t sum;           // of the codes
    int16_t half_sums[2];  // multiplier * sum of 16 codes: fits, as 16 * 16 * 127 does
};

// One stored row taken apart.
struct StoredGroups {
    uint8_t* codes;         // [n], n up to whole units
    uint16_t* scales;       // [units], fp16 or an exponent
    uint16_t* minima;       // [units], fp16
    uint8_t* group_scales;  // [n / group_size], of two levels; maybe with a sign
    uint8_t* group_minima;
};

}  // namespace hotseat
