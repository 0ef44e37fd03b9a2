// The products of grouped.h without vector instructions: value by value, as quant_format.h says.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// The value of K number i of 32, of one column, from their planes.
static int code_at(Kind kind, const uint8_t* planes, int column, int i) {
    const int bits = format_of(kind).bits, low_bits = bits == 8 ? 8 : bits >= 4 ? 4 : 2, high_bits = bits - low_bits;
    const auto read = [&](int start, int bits_here) {
        const int step = i / 4, steps_a_byte = 8 / bits_here;
        const int byte = planes[start + step / steps_a_byte * kHalfPanel * 4 + column * 4 + i % 4];
        return (byte >> (step % steps_a_byte * bits_here)) & ((1 << bits_here) - 1);
    };
    const int low = read(high_bits * kHalfPanel * 4, low_bits);
    if (kind == Kind::MXFP4) return kMxfp4[low];
    if (kind == Kind::IQ4_NL || kind == Kind::IQ4_XS) return kIq4[low];
    const int high = high_bits == 0 ? 0 : read(0, high_bits) << low_bits;
    return (low | high) - format_of(kind).offset;
}

static inline float scale_at(const uint8_t* scales, int column) { return half_to_float(scales + column * 2); }

static float exponent_at(const uint8_t* exponents, int column) {
    const uint32_t bits = exponents[column] == 0 ? 0u : (exponents[column] - 1u) << 23;  // see load_exponents
    float scale;
    __builtin_memcpy(&scale, &bits, 4);
    return scale;
}

// One column times one row, 256 values of K: y += .
static float add_unit(Kind kind, const uint8_t* unit, int column, const ActivationGroup* x, float y) {
    const QuantFormat f = format_of(kind);
    const uint8_t* integers = unit + kHalfPanel * 2 * (f.has_minimum ? 2 : 1);
    int32_t sum = 0, minimum_sum = 0;
    for (int i = 0; i < 256; i += 16) {
        const int g = i / 32, half = i / 16 % 2;
        const uint8_t* planes = unit + f.code_start() + g * f.plane_bytes();
        int byte =
            f.group_size == 16 ? integers[(g * kHalfPanel + column) * 2 + half] : integers[g * kHalfPanel + column];
        int minimum = f.has_minimum && f.group_size == 32 ? integers[(8 + g) * kHalfPanel + column] : 0;
        if (f.has_signed_scales) byte = static_cast<int8_t>(byte);
        if (f.shares_scale_bytes()) {
            minimum = byte >> 4;
            byte &= 15;
        }
        int32_t products = 0;
        for (int k = 0; k < 16; ++k)
            products += code_at(kind, planes, column, half * 16 + k) * x[g].codes[half * 16 + k];
        sum += products * byte * x[g].multiplier;
        minimum_sum += minimum * x[g].half_sums[half];
    }
    float value = static_cast<float>(sum) * scale_at(unit, column);
    if (f.has_minimum)
        value = __builtin_fmaf(static_cast<float>(minimum_sum), scale_at(unit + kHalfPanel * 2, column), value);
    return __builtin_fmaf(value, x->block_scale, y);
}

// The same of 32 values of K with a scale of one level.
static float add_group(Kind kind, const uint8_t* unit, int column, const ActivationGroup& x, float y) {
    const QuantFormat f = format_of(kind);
    int32_t sum = 0;
    for (int k = 0; k < 32; ++k) sum += code_at(kind, unit + f.code_start(), column, k) * x.codes[k];
    const float scale = f.has_exponents() ? exponent_at(unit, column) : scale_at(unit, column);
    y = __builtin_fmaf(static_cast<float>(sum) * scale, x.scale, y);
    return f.has_minimum ? __builtin_fmaf(scale_at(unit + kHalfPanel * 2, column), x.scaled_sum, y) : y;
}

static void grouped_sums(const GroupedTile& t) {
    const QuantFormat f = format_of(t.kind);
    const int groups_a_unit = f.unit() / 32;
    for (int r = 0; r < t.rows; ++r) {
        const auto* x = reinterpret_cast<const ActivationGroup*>(t.activations + r * t.activation_stride);
        for (int c = 0; c < kHalfPanel; ++c) {
            float y = 0.0f;
            const uint8_t* unit = t.half;
            for (int g = 0; g < t.num_groups; g += groups_a_unit, unit += f.unit_bytes())
                y = f.is_two_level ? add_unit(t.kind, unit, c, x + g, y) : add_group(t.kind, unit, c, x[g], y);
            t.sums[r * kPanel + c] = y;
        }
    }
}

}  // namespace hotseat::HOTSEAT_ISA
