// Weights as GGUF stores them, in groups with a scale (and a minimum) of their own, times activations in groups of 32.
//
//     w = scale * (code - offset)        or        w = scale * code + minimum
//
// Codes are integers of 4 or 8 bits, the products are integers and exact; scales join once a group:
//
//     y += (scale_w * scale_a) * sum(code * a), then y += minimum_w * (scale_a * sum(a))
//
// A half panel is 32 columns over all groups, each group: scales [32], minima [32] where there are any, codes. A vector
// of codes holds 16 columns times 4 values; with 4 bits its low halves are one step of K and its high halves the next.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static inline uint16_t float_to_half_exact(float x) {  // for values that came from a half
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    const uint32_t sign = (bits >> 16) & 0x8000u, exponent = (bits >> 23) & 0xffu, mantissa = bits & 0x7fffffu;
    if (exponent == 0xff) return static_cast<uint16_t>(sign | 0x7c00u | (mantissa >> 13));
    if (exponent >= 113) return static_cast<uint16_t>(sign | ((exponent - 112) << 10) | (mantissa >> 13));
    if (exponent < 103) return static_cast<uint16_t>(sign);
    return static_cast<uint16_t>(sign | ((mantissa | 0x800000u) >> (126 - exponent)));
}

// Codes u8[n], scales and minima f32[n / group] of one stored row.
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
        default:
            break;  // not grouped: the caller does not ask
    }
}

static void pack_groups(const GroupFormat& f, const uint8_t* codes, const float* scales, const float* minima,
                        int num_groups, uint8_t* half, int column) {
    const size_t scale_bytes = f.scale_is_half ? 2 : 4;
    for (int g = 0; g < num_groups; ++g, half += f.bytes_per_group()) {
        uint8_t* p = half;
        const auto put = [&](float value) {
            if (f.scale_is_half) {
                const uint16_t word = float_to_half_exact(value);
                __builtin_memcpy(p + column * 2, &word, 2);
            } else {
                __builtin_memcpy(p + column * 4, &value, 4);
            }
            p += kHalfPanel * scale_bytes;
        };
        put(scales[g]);
        if (f.has_minimum) put(minima[g]);
        const uint8_t* from = codes + g * f.group;
        for (int s = 0; s < f.group / 4; ++s)
            for (int k = 0; k < 4; ++k) {
                const uint8_t code = from[s * 4 + k];
                uint8_t* vector = p + (f.bits == 4 ? s / 2 : s) * kHalfPanel * 4 + column * 4 + k;
                if (f.bits == 4 && s % 2 == 0) *vector = code;
                if (f.bits == 4 && s % 2 == 1) *vector = static_cast<uint8_t>(*vector | (code << 4));
                if (f.bits == 8) *vector = code;
            }
    }
}

// Activations: codes, then a scale for each 32 values, then a sum for each 16.
static void quantize_groups(const float* x, int n, uint8_t* out) {
    int8_t* codes = reinterpret_cast<int8_t*>(out);
    float* scales = reinterpret_cast<float*>(out + n);
    int32_t* sums = reinterpret_cast<int32_t*>(out + n + n / 32 * 4);
    for (int g = 0; g < n / 32; ++g) {
        quantize(x + g * 32, 32, codes + g * 32, scales + g);
        for (int half = 0; half < 2; ++half) {
            int32_t sum = 0;
            for (int i = 0; i < 16; ++i) sum += codes[g * 32 + half * 16 + i];
            sums[g * 2 + half] = sum;
        }
    }
}

static inline V16 load_scales(const GroupFormat& f, const uint8_t* p, int vector) {
    if (!f.scale_is_half) return load(reinterpret_cast<const float*>(p) + vector * 16);
    return load_half(p + vector * 32);
}

#if defined(HOTSEAT_AVX512)

struct Sums {
    __m512i v;
};
static inline Sums start_sums(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline V16 to_float(Sums s) { return {_mm512_cvtepi32_ps(s.v)}; }
template <int kBits>
static inline void add_codes(const uint8_t* vector, bool upper, const uint8_t* a, Sums& sums) {
    __m512i codes = _mm512_loadu_si512(vector);
    if constexpr (kBits == 4)
        codes = _mm512_and_si512(upper ? _mm512_srli_epi16(codes, 4) : codes, _mm512_set1_epi8(15));
    int32_t word;
    __builtin_memcpy(&word, a, 4);
    multiply_add_int8(sums.v, codes, _mm512_set1_epi32(word));
}

#elif defined(HOTSEAT_AVX2)

struct Sums {
    __m256i lo, hi;
};
static inline Sums start_sums(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline V16 to_float(Sums s) { return {_mm256_cvtepi32_ps(s.lo), _mm256_cvtepi32_ps(s.hi)}; }
static inline __m256i multiply_codes(__m256i codes, __m256i x) {
    // Two products of 255 * 127 do not fit in 16 bits: even and odd values are widened and multiplied apart.
    const __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(codes, 8);
    const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), x_odd = _mm256_srai_epi16(x, 8);
    return _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd));
}
template <int kBits>
static inline void add_codes(const uint8_t* vector, bool upper, const uint8_t* a, Sums& sums) {
    __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vector));
    __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vector + 32));
    int32_t word;
    __builtin_memcpy(&word, a, 4);
    const __m256i x = _mm256_set1_epi32(word);
    if constexpr (kBits == 4) {
        const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
        lo = _mm256_and_si256(upper ? _mm256_srli_epi16(lo, 4) : lo, mask);
        hi = _mm256_and_si256(upper ? _mm256_srli_epi16(hi, 4) : hi, mask);
        // 15 * 127 * 2 fits in 16 bits.
        sums.lo = _mm256_add_epi32(sums.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(lo, x), ones));
        sums.hi = _mm256_add_epi32(sums.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(hi, x), ones));
    } else {
        sums.lo = _mm256_add_epi32(sums.lo, multiply_codes(lo, x));
        sums.hi = _mm256_add_epi32(sums.hi, multiply_codes(hi, x));
    }
}

#else

struct Sums {
    int32_t lane[16];
};
static inline Sums start_sums(int32_t x) {
    Sums s;
    for (int i = 0; i < 16; ++i) s.lane[i] = x;
    return s;
}
static inline V16 to_float(Sums s) { return load_int32(s.lane); }
template <int kBits>
static inline void add_codes(const uint8_t* vector, bool upper, const uint8_t* a, Sums& sums) {
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 4; ++k) {
            int code = vector[i * 4 + k];
            if (kBits == 4) code = upper ? code >> 4 : code & 15;
            sums.lane[i] += code * static_cast<int8_t>(a[k]);
        }
}

#endif

// kRows rows times one half panel: sums[r * kHalfPanel + column].
template <int kBits, int kRows>
static void grouped_rows(const GroupedTile& t, const uint8_t* a, float* out) {
    const GroupFormat& f = *t.format;
    const int n = t.num_groups * f.group, steps = f.group / 4;
    const size_t scale_bytes = kHalfPanel * (f.scale_is_half ? 2 : 4);
    const uint8_t* p = t.half;
    V16 y[kRows][2];
    for (int r = 0; r < kRows; ++r) y[r][0] = y[r][1] = set1(0.0f);
    for (int g = 0; g < t.num_groups; ++g, p += f.bytes_per_group()) {
        const uint8_t* codes = p + scale_bytes * (f.has_minimum ? 2 : 1);
        float a_scale[kRows], a_sum[kRows];
        Sums sums[kRows][2];
        for (int r = 0; r < kRows; ++r) {
            const uint8_t* row = a + r * t.activation_stride;
            const float* scales = reinterpret_cast<const float*>(row + n);
            const int32_t* row_sums = reinterpret_cast<const int32_t*>(row + n + n / 32 * 4);
            const int32_t sum = f.group == 32 ? row_sums[2 * g] + row_sums[2 * g + 1] : row_sums[g];
            a_scale[r] = scales[g * f.group / 32];
            a_sum[r] = a_scale[r] * static_cast<float>(sum);
            sums[r][0] = sums[r][1] = start_sums(-f.offset * sum);
        }
        for (int s = 0; s < steps; ++s) {
            const uint8_t* vector = codes + (kBits == 4 ? s / 2 : s) * kHalfPanel * 4;
            for (int r = 0; r < kRows; ++r) {
                const uint8_t* x = a + r * t.activation_stride + g * f.group + s * 4;
                add_codes<kBits>(vector, s % 2 == 1, x, sums[r][0]);
                add_codes<kBits>(vector + 64, s % 2 == 1, x, sums[r][1]);
            }
        }
        for (int c = 0; c < 2; ++c) {
            const V16 scale = load_scales(f, p, c);
            for (int r = 0; r < kRows; ++r) y[r][c] = fma(to_float(sums[r][c]), mul(scale, set1(a_scale[r])), y[r][c]);
            if (!f.has_minimum) continue;
            const V16 minimum = load_scales(f, p + scale_bytes, c);
            for (int r = 0; r < kRows; ++r) y[r][c] = fma(minimum, set1(a_sum[r]), y[r][c]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        store(out + r * kHalfPanel, y[r][0]);
        store(out + r * kHalfPanel + 16, y[r][1]);
    }
}

static void grouped_sums(const GroupedTile& t) {
    constexpr int kRows = kTileRows < 4 ? 2 : 4;
    const bool is_four = t.format->bits == 4;
    int row = 0;
    for (; row + kRows <= t.rows; row += kRows) {
        const uint8_t* a = t.activations + row * t.activation_stride;
        float* out = t.sums + row * kHalfPanel;
        is_four ? grouped_rows<4, kRows>(t, a, out) : grouped_rows<8, kRows>(t, a, out);
    }
    for (; row < t.rows; ++row) {
        const uint8_t* a = t.activations + row * t.activation_stride;
        float* out = t.sums + row * kHalfPanel;
        is_four ? grouped_rows<4, 1>(t, a, out) : grouped_rows<8, 1>(t, a, out);
    }
}

// Outputs of one panel from the sums of its two halves.
static void finish_grouped(const float* left, const float* right, int rows, int columns, Epilogue epilogue, float* out,
                           size_t out_stride) {
    LinearTile t{};
    t.mode = WeightMode::fp32;
    t.columns = columns;
    t.out = out;
    t.out_stride = out_stride;
    t.epilogue = epilogue;
    alignas(64) float sums[kPanel];
    for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < kHalfPanel; c += 16) {
            store(sums + c, load(left + r * kHalfPanel + c));
            store(sums + kHalfPanel + c, load(right + r * kHalfPanel + c));
        }
        finish_row(t, r, sums);
    }
}

}  // namespace hotseat::HOTSEAT_ISA
