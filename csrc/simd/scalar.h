// Sixteen float lanes without vector instructions: the definition that the
// other headers follow to the bit.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace hotseat::HOTSEAT_ISA {

struct V16 {
    float lane[16];
};

// How many query rows x 16-position groups (or 16-wide columns) attention keeps
// in registers. Speed only, never bits.
inline constexpr int kTileRows = 2;
inline constexpr int kTileVecs = 2;
// The same where bf16 pairs are multiplied.
inline constexpr int kPairRows = 2;
constexpr int pair_vecs(int) { return 1; }

#define HOTSEAT_LANES for (int i = 0; i < 16; ++i)

static inline V16 load(const float* p) {
    V16 r;
    HOTSEAT_LANES r.lane[i] = p[i];
    return r;
}
static inline void store(float* p, V16 a) { HOTSEAT_LANES p[i] = a.lane[i]; }
static inline V16 set1(float x) {
    V16 r;
    HOTSEAT_LANES r.lane[i] = x;
    return r;
}
static inline V16 add(V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] += b.lane[i];
    return a;
}
static inline V16 sub(V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] -= b.lane[i];
    return a;
}
static inline V16 mul(V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] *= b.lane[i];
    return a;
}
static inline V16 div(V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] /= b.lane[i];
    return a;
}
// a * b + c, rounded once.
static inline V16 fma(V16 a, V16 b, V16 c) {
    HOTSEAT_LANES c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}
// The second operand where either is NaN, as x86 does.
static inline V16 max(V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
static inline V16 min(V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
static inline V16 abs(V16 a) {
    HOTSEAT_LANES a.lane[i] = __builtin_fabsf(a.lane[i]);
    return a;
}
// Nearest integer, ties to even.
static inline V16 round_even(V16 a) {
    HOTSEAT_LANES a.lane[i] = __builtin_nearbyintf(a.lane[i]);
    return a;
}
// The largest integer that is not above.
static inline V16 floor(V16 a) {
    HOTSEAT_LANES a.lane[i] = __builtin_floorf(a.lane[i]);
    return a;
}
// Lanes below n from a, the others from b.
static inline V16 first_n(int n, V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] = i < n ? a.lane[i] : b.lane[i];
    return a;
}
// Lanes where x < limit from a, the others from b.
static inline V16 where_less(V16 x, V16 limit, V16 a, V16 b) {
    HOTSEAT_LANES a.lane[i] = x.lane[i] < limit.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
// mantissa * 2^exponent for integral exponents that keep the result normal.
static inline V16 scale_exponent(V16 mantissa, V16 exponent) {
    HOTSEAT_LANES {
        int32_t bits;
        std::memcpy(&bits, &mantissa.lane[i], 4);
        bits += static_cast<int32_t>(exponent.lane[i]) << 23;
        std::memcpy(&mantissa.lane[i], &bits, 4);
    }
    return mantissa;
}
// Exchange lanes whose indices differ in bit `kStride`.
template <int kStride>
static inline V16 swap_lanes(V16 a) {
    V16 r;
    HOTSEAT_LANES r.lane[i] = a.lane[i ^ kStride];
    return r;
}
static inline float reduce_add(V16 a) {
    for (int width = 8; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) a.lane[i] += a.lane[i + width];
    return a.lane[0];
}
static inline float reduce_max(V16 a) {
    for (int width = 8; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] > a.lane[i + width] ? a.lane[i] : a.lane[i + width];
    return a.lane[0];
}
// Sixteen halves.
static inline V16 load_half(const uint8_t* p) {
    V16 r;
    HOTSEAT_LANES {
        uint16_t word;
        std::memcpy(&word, p + 2 * i, 2);
        const uint32_t sign = static_cast<uint32_t>(word & 0x8000u) << 16, exponent = (word >> 10) & 31u;
        uint32_t bits;
        if (exponent == 0) {
            const float tiny = static_cast<float>(word & 0x3ffu) * 0x1p-24f;
            std::memcpy(&bits, &tiny, 4);
        } else {
            bits = ((exponent == 31 ? 255 : exponent + 112) << 23) | (static_cast<uint32_t>(word & 0x3ffu) << 13);
        }
        bits |= sign;
        std::memcpy(&r.lane[i], &bits, 4);
    }
    return r;
}
static inline uint16_t bf16_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static inline void store_bf16(uint16_t* p, V16 a) { HOTSEAT_LANES p[i] = bf16_bits(a.lane[i]); }
// Sixteen lanes of two bf16 values: the even one in the low half of the lane, the odd one in the high half.
struct Pairs {
    uint32_t lane[16];
};
static inline Pairs load_pairs(const void* p) {
    Pairs r;
    std::memcpy(&r, p, sizeof(r));
    return r;
}
static inline Pairs set_pairs(uint32_t word) {
    Pairs r;
    HOTSEAT_LANES r.lane[i] = word;
    return r;
}
static inline Pairs even_halves(Pairs a) {
    HOTSEAT_LANES a.lane[i] &= 0xffffu;
    return a;
}
static inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
// acc + the products of the odd halves, rounded, + those of the even halves, rounded again. (The product of two bf16
// values is exact in fp32.) With denormals flushed (decoder/denormals.h) this is what vdpbf16ps does.
static inline V16 dot_bf16(V16 acc, Pairs a, Pairs b) {
    HOTSEAT_LANES {
        const float odd =
            __builtin_fmaf(float_of(a.lane[i] & 0xffff0000u), float_of(b.lane[i] & 0xffff0000u), acc.lane[i]);
        acc.lane[i] = __builtin_fmaf(float_of(a.lane[i] << 16), float_of(b.lane[i] << 16), odd);
    }
    return acc;
}
// Lanes as bits: their low halves side by side, or as floats where they are bf16.
static inline void store_low_halves(uint16_t* p, V16 a) {
    HOTSEAT_LANES {
        uint32_t bits;
        std::memcpy(&bits, &a.lane[i], 4);
        p[i] = static_cast<uint16_t>(bits);
    }
}
static inline V16 widen_low_halves(V16 a) {
    HOTSEAT_LANES {
        uint32_t bits;
        std::memcpy(&bits, &a.lane[i], 4);
        a.lane[i] = float_of(bits << 16);
    }
    return a;
}
// Lanes are integral and within [-128, 127].
static inline void store_int8(int8_t* p, V16 a) { HOTSEAT_LANES p[i] = static_cast<int8_t>(a.lane[i]); }
static inline void store_int32(int32_t* p, V16 a) { HOTSEAT_LANES p[i] = static_cast<int32_t>(a.lane[i]); }
static inline V16 load_int32(const int32_t* p) {
    V16 r;
    HOTSEAT_LANES r.lane[i] = static_cast<float>(p[i]);
    return r;
}

#undef HOTSEAT_LANES

}  // namespace hotseat::HOTSEAT_ISA
