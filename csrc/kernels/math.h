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

// 2^x rounded to bf16, for x <= 0 (2^-126 below that), in the low halves of the lanes as bits. The relative error
// before rounding is below 3e-6, and 2^0 is 1.
//
// For 2^x = p * 2^w with w = floor(x) and p in [1, 2], the bits of bf16 are (p + w + 126) * 128. Floats just above
// 1.5 * 2^16 are multiples of 1 / 128: the last addition rounds p, half to even, and leaves these bits in the mantissa.
static inline V16 exp2_to_bf16(V16 x) {
    const V16 clamped = max(x, set1(-126.0f));
    const V16 whole = floor(clamped);
    const V16 f = sub(clamped, whole);
    // p - 1 = f * q(f), the least relative error of p on [0, 1].
    V16 q = set1(0.013426683843135834f);
    q = fma(q, f, set1(0.052242472767829895f));
    q = fma(q, f, set1(0.241280198097229f));
    q = fma(q, f, set1(0.6930448412895203f));
    return fma(q, f, add(whole, set1(98304.0f + 126.0f + 1.0f)));
}

// tanh with an absolute error below 2e-7: 1 - 2 / (e^2x + 1).
static inline V16 tanh(V16 x) {
    const V16 exponent = min(mul(x, set1(2.0f * kLog2E)), set1(126.0f));
    return sub(set1(1.0f), div(set1(2.0f), add(exp2(exponent), set1(1.0f))));
}

static inline V16 softcap(V16 x, V16 cap) { return mul(cap, tanh(div(x, cap))); }

// The error function to 1.5e-7 (Abramowitz and Stegun, formula 7.1.26).
static inline V16 erf(V16 x) {
    const V16 size = abs(x), zero = set1(0.0f), one = set1(1.0f);
    const V16 t = div(one, fma(set1(0.3275911f), size, one));
    V16 series = set1(1.061405429f);
    series = fma(series, t, set1(-1.453152027f));
    series = fma(series, t, set1(1.421413741f));
    series = fma(series, t, set1(-0.284496736f));
    series = fma(series, t, set1(0.254829592f));
    const V16 tail = mul(mul(series, t), exp2(mul(mul(x, x), set1(-kLog2E))));
    return where_less(x, zero, sub(tail, one), sub(one, tail));
}

// x / (1 + e^-x)
static inline V16 silu(V16 x) {
    const V16 exponent = min(mul(x, set1(-kLog2E)), set1(126.0f));
    return div(x, add(set1(1.0f), exp2(exponent)));
}

static inline V16 sigmoid(V16 x) {
    const V16 exponent = min(mul(x, set1(-kLog2E)), set1(126.0f));
    return div(set1(1.0f), add(set1(1.0f), exp2(exponent)));
}

// gpt-oss: x' * sigmoid(1.702 x') * (up' + 1), where x' and up' are clamped.
static inline V16 swiglu_oai(V16 x, V16 up) {
    const V16 gate = min(x, set1(7.0f));
    const V16 exponent = min(mul(gate, set1(-1.702f * kLog2E)), set1(126.0f));
    const V16 activated = div(gate, add(set1(1.0f), exp2(exponent)));
    return mul(activated, add(max(min(up, set1(7.0f)), set1(-7.0f)), set1(1.0f)));
}

// x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
static inline V16 gelu_tanh(V16 x) {
    const V16 cubic = mul(mul(mul(set1(0.044715f), x), x), x);
    const V16 inner = mul(set1(1.5957691216057308f), add(x, cubic));
    return div(x, add(set1(1.0f), exp2(min(mul(inner, set1(-kLog2E)), set1(126.0f)))));
}

static inline V16 gelu_erf(V16 x) {
    return mul(mul(set1(0.5f), x), add(set1(1.0f), erf(mul(x, set1(0.7071067811865476f)))));
}

static inline V16 relu2(V16 x) {
    const V16 positive = max(x, set1(0.0f));
    return mul(positive, positive);
}

}  // namespace hotseat::HOTSEAT_ISA
