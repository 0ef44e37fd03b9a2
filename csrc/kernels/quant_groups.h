// Weights and activations in groups: how GGUF stores them, and the nearest ones.
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
static uint16_t round_group(const float* x, uint8_t* codes) {
    int8_t rounded[32];
    float scale;
    quantize(x, 32, rounded, &scale);
    const uint16_t half = float_to_half(scale);
    scale = half_to_float(reinterpret_cast<const uint8_t*>(&half));
    const bool is_usable = scale > 0.0f;  // neither zero nor NaN
    const V16 low = set1(-127.0f), high = set1(127.0f), divisor = set1(scale);
    for (int i = 0; i < 32; i += 16)
        store_int8(rounded + i, is_usable ? min(max(round_even(div(load(x + i), divisor)), low), high) : set1(0.0f));
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(rounded[i]) ^ 0x80;
    return half;
}

// Codes and scales of a row that is stored without groups; what is missing in the last one counts as zeros.
static void round_to_groups(Kind kind, const uint8_t* source, int n, const StoredGroups& out) {
    const int value_bytes = kind == Kind::F32 ? 4 : 2;
    for (int i = 0; i < n; i += 32) {
        float values[32] = {};
        dequantize_row(kind, source + static_cast<size_t>(i) * value_bytes, n - i < 32 ? n - i : 32, values);
        out.scales[i / 32] = round_group(values, out.codes + i);
    }
}

static inline uint16_t load_u16(const uint8_t* p) {
    uint16_t x;
    __builtin_memcpy(&x, p, 2);
    return x;
}

// 32 codes of four bits: value i in the low half of a byte, value i + 16 in its high half.
static inline void nibbles(const uint8_t* q, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = q[i] & 15;
        codes[i + 16] = q[i] >> 4;
    }
}

// Blocks of 32 values, each: fp16 scale, fp16 minimum, four bytes of fifth bits, four-bit codes, as far as there are.
static void unpack_small_blocks(Kind kind, const uint8_t* b, int num_blocks, const StoredGroups& out) {
    const QuantFormat format = format_of(kind);
    for (int g = 0; g < num_blocks; ++g) {
        uint8_t* codes = out.codes + g * 32;
        out.scales[g] = kind == Kind::MXFP4 ? *b : load_u16(b);
        b += kind == Kind::MXFP4 ? 1 : 2;
        if (format.has_minimum) {
            out.minima[g] = load_u16(b);
            b += 2;
        }
        if (kind == Kind::Q8_0) {
            for (int i = 0; i < 32; ++i) codes[i] = b[i] ^ 0x80;
            b += 32;
            continue;
        }
        const uint32_t high = format.bits == 5 ? load_u32(b) : 0;
        b += format.bits == 5 ? 4 : 0;
        nibbles(b, codes);
        b += 16;
        if (format.bits == 5)
            for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>(((high >> i) & 1u) << 4);
    }
}

static void unpack_q4_q5_k(Kind kind, const uint8_t* b, int block, const StoredGroups& out) {
    out.scales[block] = load_u16(b);
    out.minima[block] = load_u16(b + 2) ^ 0x8000u;  // the file's is subtracted
    const uint8_t *high = b + 16, *low = kind == Kind::Q4_K ? b + 16 : b + 48;
    for (int j = 0; j < 8; ++j) {
        int scale, minimum;
        k_scale(b + 4, j, &scale, &minimum);
        out.group_scales[block * 8 + j] = static_cast<uint8_t>(scale);
        out.group_minima[block * 8 + j] = static_cast<uint8_t>(minimum);
        for (int i = 0; i < 32; ++i) {
            const uint8_t byte = low[(j / 2) * 32 + i];
            uint8_t code = j % 2 ? byte >> 4 : byte & 15;
            if (kind == Kind::Q5_K) code |= static_cast<uint8_t>(((high[i] >> j) & 1) << 4);
            out.codes[block * 256 + j * 32 + i] = code;
        }
    }
}

static void unpack_q6_k(const uint8_t* b, int block, const StoredGroups& out) {
    out.scales[block] = load_u16(b + 208);
    for (int g = 0; g < 16; ++g) out.group_scales[block * 16 + g] = b[192 + g];
    for (int i = 0; i < 256; ++i) {
        const int part = i / 128, quarter = i % 128 / 32, lane = i % 32;
        const uint8_t byte = b[part * 64 + (quarter % 2) * 32 + lane];
        const int nibble = quarter < 2 ? byte & 15 : byte >> 4;
        const int top = (b[128 + part * 32 + lane] >> (2 * quarter)) & 3;
        out.codes[block * 256 + i] = static_cast<uint8_t>(nibble | (top << 4));
    }
}

static void unpack_q2_q3_k(Kind kind, const uint8_t* b, int block, const StoredGroups& out) {
    if (kind == Kind::Q2_K) {
        out.scales[block] = load_u16(b + 80);
        out.minima[block] = load_u16(b + 82) ^ 0x8000u;
        for (int g = 0; g < 16; ++g) out.group_scales[block * 16 + g] = b[g];  // minima in their upper halves
        for (int i = 0; i < 256; ++i)
            out.codes[block * 256 + i] = (b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        return;
    }
    out.scales[block] = load_u16(b + 108);
    for (int g = 0; g < 16; ++g) out.group_scales[block * 16 + g] = static_cast<uint8_t>(q3_scale(b + 96, g));
    for (int i = 0; i < 256; ++i) out.codes[block * 256 + i] = static_cast<uint8_t>(q3_code(b, i));
}

static void unpack_iq4_xs(const uint8_t* b, int block, const StoredGroups& out) {
    out.scales[block] = load_u16(b);
    for (int j = 0; j < 8; ++j) {
        out.group_scales[block * 8 + j] = static_cast<uint8_t>(iq4_scale(b, j));
        nibbles(b + 8 + j * 16, out.codes + block * 256 + j * 32);
    }
}

static void unpack_groups(Kind kind, const uint8_t* b, int n, const StoredGroups& out) {
    const auto each = [&](int block_bytes, auto&& unpack) {
        for (int block = 0; block < n / 256; ++block) unpack(b + static_cast<size_t>(block) * block_bytes, block);
    };
    switch (kind) {
        case Kind::F32:
        case Kind::F16:
        case Kind::BF16:
            return round_to_groups(kind, b, n, out);
        case Kind::Q4_K:
        case Kind::Q5_K:
            return each(kind == Kind::Q4_K ? 144 : 176,
                        [&](const uint8_t* p, int block) { unpack_q4_q5_k(kind, p, block, out); });
        case Kind::Q6_K:
            return each(210, [&](const uint8_t* p, int block) { unpack_q6_k(p, block, out); });
        case Kind::Q2_K:
        case Kind::Q3_K:
            return each(kind == Kind::Q2_K ? 84 : 110,
                        [&](const uint8_t* p, int block) { unpack_q2_q3_k(kind, p, block, out); });
        case Kind::IQ4_XS:
            return each(136, [&](const uint8_t* p, int block) { unpack_iq4_xs(p, block, out); });
        default:
            return unpack_small_blocks(kind, b, n / 32, out);
    }
}

}  // namespace hotseat::HOTSEAT_ISA
