// Weights and activations in groups: how GGUF stores them, how they are packed, see grouped.h.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// Half to even; values from a half come back as they were.
static inline uint16_t float_to_half(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    const uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
    if (size >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
    if (size >= 0x38800000u)                                                // a normal half
        return static_cast<uint16_t>(sign | ((size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13));
    float sum;  // the last bit of 0.5 is the smallest half, 2^-24
    __builtin_memcpy(&sum, &size, 4);
    sum += 0.5f;
    __builtin_memcpy(&bits, &sum, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
}

// The nearest group of Q8_0: scale = half(max|x| / 127), codes = round_half_to_even(x / scale).
static void round_group(const float* x, uint8_t* codes, float* scale) {
    int8_t rounded[32];
    quantize(x, 32, rounded, scale);
    uint16_t half = float_to_half(*scale);
    *scale = half_to_float(reinterpret_cast<const uint8_t*>(&half));
    const bool is_usable = *scale > 0.0f;  // neither zero nor NaN
    const V16 low = set1(-127.0f), high = set1(127.0f), divisor = set1(*scale);
    for (int i = 0; i < 32; i += 16)
        store_int8(rounded + i, is_usable ? min(max(round_even(div(load(x + i), divisor)), low), high) : set1(0.0f));
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(rounded[i]) ^ 0x80;
}

// Codes and scales of a row that is stored without groups; what is missing in the last one counts as zeros.
static void round_to_groups(Kind kind, const uint8_t* source, int n, uint8_t* codes, float* scales) {
    const int value_bytes = kind == Kind::F32 ? 4 : 2;
    for (int i = 0; i < n; i += 32) {
        float values[32] = {};
        dequantize_row(kind, source + static_cast<size_t>(i) * value_bytes, n - i < 32 ? n - i : 32, values);
        round_group(values, codes + i, scales + i / 32);
    }
}

// Codes, scales and minima of one stored row; F32, F16 and BF16 are rounded to Q8_0.
static void unpack_groups(Kind kind, const uint8_t* b, int n, uint8_t* codes, float* scales, float* minima) {
    const auto nibbles = [](const uint8_t* q, uint8_t* out) {
        for (int i = 0; i < 16; ++i) {
            out[i] = q[i] & 15;
            out[i + 16] = q[i] >> 4;
        }
    };
    switch (kind) {
        case Kind::Q8_0:
            for (int g = 0; g < n / 32; ++g, b += 34) {
                scales[g] = half_to_float(b);
                for (int i = 0; i < 32; ++i) codes[g * 32 + i] = b[2 + i] ^ 0x80;
            }
            break;
        case Kind::Q4_0:
            for (int g = 0; g < n / 32; ++g, b += 18) {
                scales[g] = half_to_float(b);
                nibbles(b + 2, codes + g * 32);
            }
            break;
        case Kind::Q4_1:
            for (int g = 0; g < n / 32; ++g, b += 20) {
                scales[g] = half_to_float(b);
                minima[g] = half_to_float(b + 2);
                nibbles(b + 4, codes + g * 32);
            }
            break;
        case Kind::Q5_0:
        case Kind::Q5_1:
            for (int g = 0; g < n / 32; ++g) {
                scales[g] = half_to_float(b);
                b += 2;
                if (kind == Kind::Q5_1) {
                    minima[g] = half_to_float(b);
                    b += 2;
                }
                const uint32_t high = load_u32(b);
                nibbles(b + 4, codes + g * 32);
                for (int i = 0; i < 32; ++i) codes[g * 32 + i] |= static_cast<uint8_t>(((high >> i) & 1u) << 4);
                b += 20;
            }
            break;
        case Kind::Q4_K:
        case Kind::Q5_K:
            for (int block = 0; block < n / 256; ++block, b += kind == Kind::Q4_K ? 144 : 176) {
                const float d = half_to_float(b), dmin = half_to_float(b + 2);
                const uint8_t *high = b + 16, *low = kind == Kind::Q4_K ? b + 16 : b + 48;
                for (int j = 0; j < 8; ++j) {
                    int scale, minimum;
                    k_scale(b + 4, j, &scale, &minimum);
                    const int g = block * 8 + j;
                    scales[g] = d * static_cast<float>(scale);
                    minima[g] = -(dmin * static_cast<float>(minimum));
                    for (int i = 0; i < 32; ++i) {
                        const uint8_t byte = low[(j / 2) * 32 + i];
                        uint8_t code = j % 2 ? byte >> 4 : byte & 15;
                        if (kind == Kind::Q5_K) code |= static_cast<uint8_t>(((high[i] >> j) & 1) << 4);
                        codes[g * 32 + i] = code;
                    }
                }
            }
            break;
        case Kind::Q6_K:
            for (int block = 0; block < n / 256; ++block, b += 210) {
                const float d = half_to_float(b + 208);
                const int8_t* block_scales = reinterpret_cast<const int8_t*>(b + 192);
                for (int g = 0; g < 16; ++g) scales[block * 16 + g] = d * static_cast<float>(block_scales[g]);
                for (int i = 0; i < 256; ++i) {
                    const int part = i / 128, quarter = i % 128 / 32, lane = i % 32;
                    const uint8_t byte = b[part * 64 + (quarter % 2) * 32 + lane];
                    const int nibble = quarter < 2 ? byte & 15 : byte >> 4;
                    const int top = (b[128 + part * 32 + lane] >> (2 * quarter)) & 3;
                    codes[block * 256 + i] = static_cast<uint8_t>(nibble | (top << 4));
                }
            }
            break;
        case Kind::F32:
        case Kind::F16:
        case Kind::BF16:
            round_to_groups(kind, b, n, codes, scales);
            break;
    }
}

static void pack_groups(const QuantFormat& f, const uint8_t* codes, const float* scales, const float* minima,
                        int num_groups, uint8_t* half, int column) {
    const size_t scale_bytes = f.scale_is_half ? 2 : 4;
    for (int g = 0; g < num_groups; ++g, half += f.bytes_per_group()) {
        uint8_t* p = half;
        const auto put = [&](float value) {
            if (f.scale_is_half) {
                const uint16_t word = float_to_half(value);
                __builtin_memcpy(p + column * 2, &word, 2);
            } else {
                __builtin_memcpy(p + column * 4, &value, 4);
            }
            p += kHalfPanel * scale_bytes;
        };
        put(scales[g]);
        if (f.has_minimum) put(minima[g]);
        const uint8_t* from = codes + g * f.group_size;
        for (int s = 0; s < f.group_size / 4; ++s)
            for (int k = 0; k < 4; ++k) {
                const uint8_t code = from[s * 4 + k];
                uint8_t* vector = p + (f.bits == 4 ? s / 2 : s) * kHalfPanel * 4 + column * 4 + k;
                if (f.bits == 4 && s % 2 == 0) *vector = code;
                if (f.bits == 4 && s % 2 == 1) *vector = static_cast<uint8_t>(*vector | (code << 4));
                if (f.bits == 8) *vector = code;
            }
    }
}

static void quantize_groups(const float* x, int n, ActivationGroup* out) {
    for (int i = 0; i < n; i += 32, ++out) {
        const int count = n - i < 32 ? n - i : 32;
        out->sum = quantize(x + i, count, out->codes, &out->scale);
        for (int k = count; k < 32; ++k) out->codes[k] = 0;
        int32_t first_half = 0;
        for (int k = 0; k < 16; ++k) first_half += out->codes[k];
        out->half_sums[0] = first_half;
        out->half_sums[1] = out->sum - first_half;
        out->scaled_sum = out->scale * static_cast<float>(out->sum);
    }
}

}  // namespace hotseat::HOTSEAT_ISA
