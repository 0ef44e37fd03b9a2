// Passes over one row of logits.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static bool all_finite(const float* x, int n) {
    const V16 zero = set1(0.0f);
    V16 nan_check = zero;  // becomes NaN where a value is NaN or infinite
    int i = 0;
    for (; i + 16 <= n; i += 16) nan_check = fma(load(x + i), zero, nan_check);
    float broken = reduce_add(nan_check);
    for (; i < n; ++i) broken += x[i] * 0.0f;
    return broken == 0.0f;
}

static float maximum(const float* x, int n) {
    V16 largest = set1(-__builtin_inff());
    int i = 0;
    for (; i + 16 <= n; i += 16) largest = max(load(x + i), largest);
    float peak = reduce_max(largest);
    for (; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
    return peak;
}

// e^(x - max), the terms added in sixteen lanes over blocks of 256 and the
// blocks in double precision.
static double sum_of_exponentials(const float* x, int n, float max_value) {
    const V16 shift = set1(max_value), log2e = set1(kLog2E), zero = set1(0.0f);
    double total = 0.0;
    for (int start = 0; start < n; start += 256) {
        const int end = n - start < 256 ? n : start + 256;
        V16 sum = zero;
        int i = start;
        for (; i + 16 <= end; i += 16) sum = add(sum, exp2(mul(sub(load(x + i), shift), log2e)));
        if (i < end) sum = add(sum, first_n(end - i, exp2(mul(sub(load_tail(x + i, end - i), shift), log2e)), zero));
        total += static_cast<double>(reduce_add(sum));
    }
    return total;
}

static void exp_weights(const float* x, int n, float max_value, float* relative, int32_t* weights,
                        int64_t* block_sums) {
    const V16 shift = set1(max_value), log2e = set1(kLog2E), unit = set1(1073741824.0f);
    for (int start = 0, block = 0; start < n; start += 256, ++block) {
        const int end = n - start < 256 ? n : start + 256;
        for (int i = start; i < end; i += 16) {
            const int m = end - i < 16 ? end - i : 16;
            const V16 v = m == 16 ? load(x + i) : load_tail(x + i, m);
            const V16 w = exp2(mul(sub(v, shift), log2e));
            const V16 integral = round_even(mul(w, unit));
            if (m == 16) {
                store(relative + i, w);
                store_int32(weights + i, integral);
            } else {
                int32_t words[16];
                store_tail(relative + i, w, m);
                store_int32(words, integral);
                for (int j = 0; j < m; ++j) weights[i + j] = words[j];
            }
        }
        int64_t sum = 0;
        for (int i = start; i < end; ++i) sum += weights[i];
        block_sums[block] = sum;
    }
}

}  // namespace hotseat::HOTSEAT_ISA
