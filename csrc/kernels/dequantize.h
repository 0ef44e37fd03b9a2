// Exact values of stored weights. Formats are GGML's; every product and sum is
// rounded to float32 where GGML's reference rounds it.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static inline float half_to_float(const uint8_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else {
        const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
        __builtin_memcpy(&bits, &tiny, 4);
        bits |= sign;
    }
    float out;
    __builtin_memcpy(&out, &bits, 4);
    return out;
}

static inline uint32_t load_u32(const uint8_t* p) {
    uint32_t x;
    __builtin_memcpy(&x, p, 4);
    return x;
}

static void dequantize_q8_0(const uint8_t* b, float* out) {
    const float d = half_to_float(b);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}
static void dequantize_q4_0(const uint8_t* b, float* out) {
    const float d = half_to_float(b);
    for (int i = 0; i < 16; ++i) {
        out[i] = static_cast<float>((b[2 + i] & 15) - 8) * d;
        out[i + 16] = static_cast<float>((b[2 + i] >> 4) - 8) * d;
    }
}
static void dequantize_q4_1(const uint8_t* b, float* out) {
    const float d = half_to_float(b), m = half_to_float(b + 2);
    for (int i = 0; i < 16; ++i) {
        out[i] = static_cast<float>(b[4 + i] & 15) * d + m;
        out[i + 16] = static_cast<float>(b[4 + i] >> 4) * d + m;
    }
}
static void dequantize_q5_0(const uint8_t* b, float* out) {
    const float d = half_to_float(b);
    const uint32_t high = load_u32(b + 2);
    for (int i = 0; i < 16; ++i) {
        const int lo = (b[6 + i] & 15) | static_cast<int>(((high >> i) & 1u) << 4);
        const int hi = (b[6 + i] >> 4) | static_cast<int>(((high >> (i + 16)) & 1u) << 4);
        out[i] = static_cast<float>(lo - 16) * d;
        out[i + 16] = static_cast<float>(hi - 16) * d;
    }
}
static void dequantize_q5_1(const uint8_t* b, float* out) {
    const float d = half_to_float(b), m = half_to_float(b + 2);
    const uint32_t high = load_u32(b + 4);
    for (int i = 0; i < 16; ++i) {
        const int lo = (b[8 + i] & 15) | static_cast<int>(((high >> i) & 1u) << 4);
        const int hi = (b[8 + i] >> 4) | static_cast<int>(((high >> (i + 16)) & 1u) << 4);
        out[i] = static_cast<float>(lo) * d + m;
        out[i + 16] = static_cast<float>(hi) * d + m;
    }
}

// Six-bit scale and minimum number j of eight, packed in twelve bytes.
static inline void k_scale(const uint8_t* q, int j, int* scale, int* minimum) {
    if (j < 4) {
        *scale = q[j] & 63;
        *minimum = q[j + 4] & 63;
    } else {
        *scale = (q[j + 4] & 15) | ((q[j - 4] >> 6) << 4);
        *minimum = (q[j + 4] >> 4) | ((q[j] >> 6) << 4);
    }
}
static void dequantize_q4_k(const uint8_t* b, float* out) {
    const float d = half_to_float(b), dmin = half_to_float(b + 2);
    for (int j = 0; j < 8; ++j) {
        int scale, minimum;
        k_scale(b + 4, j, &scale, &minimum);
        const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(minimum);
        const uint8_t* q = b + 16 + (j / 2) * 32;
        for (int i = 0; i < 32; ++i) out[j * 32 + i] = s * static_cast<float>(j % 2 ? q[i] >> 4 : q[i] & 15) - m;
    }
}
static void dequantize_q5_k(const uint8_t* b, float* out) {
    const float d = half_to_float(b), dmin = half_to_float(b + 2);
    const uint8_t* high = b + 16;
    for (int j = 0; j < 8; ++j) {
        int scale, minimum;
        k_scale(b + 4, j, &scale, &minimum);
        const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(minimum);
        const uint8_t* q = b + 48 + (j / 2) * 32;
        for (int i = 0; i < 32; ++i) {
            const int low = j % 2 ? q[i] >> 4 : q[i] & 15;
            out[j * 32 + i] = s * static_cast<float>(low | (((high[i] >> j) & 1) << 4)) - m;
        }
    }
}
static void dequantize_q6_k(const uint8_t* b, float* out) {
    const uint8_t *low = b, *high = b + 128;
    const int8_t* scales = reinterpret_cast<const int8_t*>(b + 192);
    const float d = half_to_float(b + 208);
    for (int i = 0; i < 256; ++i) {
        const int part = i / 128, within = i % 128, quarter = within / 32, lane = within % 32;
        const uint8_t byte = low[part * 64 + (quarter % 2) * 32 + lane];
        const int nibble = quarter < 2 ? byte & 15 : byte >> 4;
        const int top = (high[part * 32 + lane] >> (2 * quarter)) & 3;
        const float s = d * static_cast<float>(scales[i / 16]);
        out[i] = s * static_cast<float>((nibble | (top << 4)) - 32);
    }
}

static void dequantize_q2_k(const uint8_t* b, float* out) {
    const float d = half_to_float(b + 80), dmin = half_to_float(b + 82);
    for (int i = 0; i < 256; ++i) {
        const uint8_t scale = b[i / 16];
        const int code = (b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        const float s = d * static_cast<float>(scale & 15), m = dmin * static_cast<float>(scale >> 4);
        out[i] = s * static_cast<float>(code) - m;
    }
}
// Six-bit scale number j of sixteen, packed in twelve bytes, less 32.
static inline int q3_scale(const uint8_t* q, int j) {
    const int low = j < 8 ? q[j] & 15 : q[j - 8] >> 4;
    return (low | (((q[8 + j % 4] >> (j / 4 * 2)) & 3) << 4)) - 32;
}
// The code of value i, which counts from -4.
static inline int q3_code(const uint8_t* b, int i) {
    const int low = (b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    return low | (((b[i % 32] >> (i / 32)) & 1) << 2);
}
static void dequantize_q3_k(const uint8_t* b, float* out) {
    const float d = half_to_float(b + 108);
    for (int i = 0; i < 256; ++i) {
        const float s = d * static_cast<float>(q3_scale(b + 96, i / 16));
        out[i] = s * static_cast<float>(q3_code(b, i) - 4);
    }
}
static constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static constexpr int8_t kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static void look_up_nibbles(const int8_t* table, const uint8_t* q, float scale, float* out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = scale * static_cast<float>(table[q[i] & 15]);
        out[i + 16] = scale * static_cast<float>(table[q[i] >> 4]);
    }
}
static void dequantize_iq4_nl(const uint8_t* b, float* out) { look_up_nibbles(kIq4, b + 2, half_to_float(b), out); }
static inline int iq4_scale(const uint8_t* b, int j) {
    const int low = (b[4 + j / 2] >> (j % 2 * 4)) & 15, high = ((b[2] | b[3] << 8) >> (2 * j)) & 3;
    return (low | (high << 4)) - 32;
}
static void dequantize_iq4_xs(const uint8_t* b, float* out) {
    const float d = half_to_float(b);
    for (int j = 0; j < 8; ++j)
        look_up_nibbles(kIq4, b + 8 + j * 16, d * static_cast<float>(iq4_scale(b, j)), out + j * 32);
}
// 2^(exponent - 128): the table holds twice the values.
static void dequantize_mxfp4(const uint8_t* b, float* out) {
    const uint32_t bits = b[0] < 2 ? 0x200000u << b[0] : (b[0] - 1u) << 23;
    float scale;
    __builtin_memcpy(&scale, &bits, 4);
    look_up_nibbles(kMxfp4, b + 1, scale, out);
}

template <int kValues, int kBytes>
static void dequantize_blocks(void (*block)(const uint8_t*, float*), const uint8_t* source, int n, float* out) {
    for (int i = 0; i < n; i += kValues, source += kBytes) block(source, out + i);
}

static void dequantize_row(Kind kind, const uint8_t* source, int n, float* out) {
    switch (kind) {
        case Kind::F32:
            __builtin_memcpy(out, source, static_cast<size_t>(n) * 4);
            break;
        case Kind::F16:
            for (int i = 0; i < n; ++i) out[i] = half_to_float(source + 2 * i);
            break;
        case Kind::BF16:
            for (int i = 0; i < n; ++i) {
                uint16_t word;
                __builtin_memcpy(&word, source + 2 * i, 2);
                const uint32_t bits = static_cast<uint32_t>(word) << 16;
                __builtin_memcpy(out + i, &bits, 4);
            }
            break;
        case Kind::Q8_0:
            dequantize_blocks<32, 34>(dequantize_q8_0, source, n, out);
            break;
        case Kind::Q4_0:
            dequantize_blocks<32, 18>(dequantize_q4_0, source, n, out);
            break;
        case Kind::Q4_1:
            dequantize_blocks<32, 20>(dequantize_q4_1, source, n, out);
            break;
        case Kind::Q5_0:
            dequantize_blocks<32, 22>(dequantize_q5_0, source, n, out);
            break;
        case Kind::Q5_1:
            dequantize_blocks<32, 24>(dequantize_q5_1, source, n, out);
            break;
        case Kind::Q4_K:
            dequantize_blocks<256, 144>(dequantize_q4_k, source, n, out);
            break;
        case Kind::Q5_K:
            dequantize_blocks<256, 176>(dequantize_q5_k, source, n, out);
            break;
        case Kind::Q6_K:
            dequantize_blocks<256, 210>(dequantize_q6_k, source, n, out);
            break;
        case Kind::Q2_K:
            dequantize_blocks<256, 84>(dequantize_q2_k, source, n, out);
            break;
        case Kind::Q3_K:
            dequantize_blocks<256, 110>(dequantize_q3_k, source, n, out);
            break;
        case Kind::IQ4_NL:
            dequantize_blocks<32, 18>(dequantize_iq4_nl, source, n, out);
            break;
        case Kind::IQ4_XS:
            dequantize_blocks<256, 136>(dequantize_iq4_xs, source, n, out);
            break;
        case Kind::MXFP4:
            dequantize_blocks<32, 17>(dequantize_mxfp4, source, n, out);
            break;
    }
}

}  // namespace hotseat::HOTSEAT_ISA
