// Functions of sixteen lanes, built from the lane operations alone so that all
// instruction sets agree to the bit.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// 2^x with a relative error below 2e-7; 0 below x = -125. x is at most 126.
static inline V16 exp2(V16 x) {
    const V16 floor_limit = set1(-125.0f);
    const V16 clamped = max(x, floor_limit);
    const V16 whole = round_even(clamped);
    const V16 f = sub(clamped, whole);  // [-0.5, 0.5]
    // Taylor coefficients ln(2)^k / k!; the last term's neglect is below 2^-26 on
    // the interval.
    V16 p = set1(1.5403530393381606e-4f);
    p = fma(p, f, set1(1.3333558146428443e-3f));
    p = fma(p, f, set1(9.618129107628477e-3f));
    p = fma(p, f, set1(5.550410866482158e-2f));
    p = fma(p, f, set1(2.402265069591007e-1f));
    p = fma(p, f, set1(6.931471805599453e-1f));
    p = fma(p, f, set1(1.0f));
    return where_less(x, floor_limit, set1(0.0f), scale_exponent(p, whole));
}

static inline constexpr float kLog2E = 1.4426950408889634f;

// x / (1 + e^-x)
static inline V16 silu(V16 x) {
    const V16 exponent = min(mul(x, set1(-kLog2E)), set1(126.0f));
    return div(x, add(set1(1.0f), exp2(exponent)));
}

}  // namespace hotseat::HOTSEAT_ISA
