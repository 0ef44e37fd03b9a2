// Attention of a few query rows over one span of the paged KV cache.
//
// Theory of operation. A sequence's positions are cut into spans of 256 at
// absolute multiples of 256, and a span into groups of 16, because that is how
// the cache lies in memory:
//
//     keys   of a group   [head_dim][16]           one vector load gives one
//     dimension of 16 positions values of a group   [16][head_dim_padded] one
//     vector load gives 16 dimensions of one position
//
// For one row and one span the arithmetic is always: scores by a chain of fused
// multiply-adds over head_dim, their maximum, powers of two, the sum in 16
// fixed lanes, and values by a chain over positions. Spans are merged in
// ascending order. How many rows go side by side, whether a row is part of a
// prefill or a lone decode, which thread does it and in what order spans are
// computed changes none of these chains, so a row's bits depend on its own
// sequence only. Positions at or beyond a row's limit take no part, whatever is
// in them, be it NaN.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static inline V16 load_kv(const float* p) { return load(p); }
static inline V16 load_kv(const uint16_t* p) { return load_bf16(p); }

// Blocks lie anywhere, so the hardware does not foresee the next one: a tile of
// few rows, that is a decode, fetches it while it works on this one. A full tile
// is part of a prefill, whose span is in a near cache.
template <int kRows>
static constexpr bool kFetches = kRows < kTileRows;

// Groups of keys, and after the last one groups of values.
template <class T>
static inline const T* group_after_keys(const AttentionTile& t, int group, int num_groups) {
    if (group < num_groups) return static_cast<const T*>(t.span->keys[group]);
    return static_cast<const T*>(t.span->values[group - num_groups < num_groups ? group - num_groups : 0]);
}

// scores[r][g * 16 + lane] for kRows rows and kVecs groups starting at `first`.
template <class T, int kRows, int kVecs>
static inline void score_groups(const AttentionTile& t, int row, int first, int num_groups) {
    const T* next[kVecs];
    if constexpr (kFetches<kRows>)
        for (int g = 0; g < kVecs; ++g) next[g] = group_after_keys<T>(t, first + kVecs + g, num_groups);
    V16 acc[kRows][kVecs];
    for (int r = 0; r < kRows; ++r)
        for (int g = 0; g < kVecs; ++g) acc[r][g] = set1(0.0f);
    const T* keys[kVecs];
    const float* q[kRows];
    for (int g = 0; g < kVecs; ++g) keys[g] = static_cast<const T*>(t.span->keys[first + g]);
    for (int r = 0; r < kRows; ++r) q[r] = t.queries[row + r];
    for (int d = 0; d < t.head_dim; ++d) {
        V16 k[kVecs];
        for (int g = 0; g < kVecs; ++g) {
            if constexpr (kFetches<kRows>) __builtin_prefetch(next[g] + d * kGroup, 0, 2);
            k[g] = load_kv(keys[g] + d * kGroup);
        }
        for (int r = 0; r < kRows; ++r) {
            const V16 x = set1(q[r][d]);
            for (int g = 0; g < kVecs; ++g) acc[r][g] = fma(x, k[g], acc[r][g]);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int g = 0; g < kVecs; ++g) store(t.scores + (row + r) * kSpan + (first + g) * kGroup, acc[r][g]);
}

template <class T, int kRows>
static inline void score_rows(const AttentionTile& t, int row, int num_groups) {
    int g = 0;
    for (; g + kTileVecs <= num_groups; g += kTileVecs) score_groups<T, kRows, kTileVecs>(t, row, g, num_groups);
    for (; g < num_groups; ++g) score_groups<T, kRows, 1>(t, row, g, num_groups);
}

// Turn one row of scores into weights 2^(score - max); zero up to `padded`.
static inline void soften(float* scores, int limit, int padded, float* max_out, float* sum_out) {
    const V16 lowest = set1(-__builtin_inff());
    V16 largest = lowest;
    for (int i = 0; i < limit; i += 16) largest = max(first_n(limit - i, load(scores + i), lowest), largest);
    const float peak = reduce_max(largest);
    const V16 shift = set1(peak), zero = set1(0.0f);
    V16 total = zero;
    int i = 0;
    for (; i < limit; i += 16) {
        const V16 weight = first_n(limit - i, exp2(sub(load(scores + i), shift)), zero);
        store(scores + i, weight);
        total = add(total, weight);
    }
    for (; i < padded; i += 16) store(scores + i, zero);
    *max_out = peak;
    *sum_out = reduce_add(total);
}

template <class T, int kRows, int kVecs>
static inline void weigh_values(const AttentionTile& t, int row, int column, int num_positions) {
    V16 acc[kRows][kVecs];
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kVecs; ++c) acc[r][c] = set1(0.0f);
    int seen_by_all = num_positions;
    for (int r = 0; r < kRows; ++r) seen_by_all = t.limits[row + r] < seen_by_all ? t.limits[row + r] : seen_by_all;
    for (int start = 0; start < num_positions; start += kGroup) {
        const T* values = static_cast<const T*>(t.span->values[start / kGroup]) + column;
        const int end = num_positions - start < kGroup ? num_positions - start : kGroup;
        const float* weights = t.scores + row * kSpan + start;
        const int next_group = start / kGroup + kFetchedGroups;
        const T* next = values;
        if (next_group * kGroup < num_positions)
            next = static_cast<const T*>(t.span->values[next_group]) + column;
        else if (t.next != nullptr)
            next = static_cast<const T*>(t.next->keys[next_group - (num_positions + kGroup - 1) / kGroup]);
        int j = 0;
        for (; j < end && start + j < seen_by_all; ++j) {
            V16 v[kVecs];
            for (int c = 0; c < kVecs; ++c) {
                if constexpr (kFetches<kRows>) __builtin_prefetch(next + j * t.head_dim_padded + c * 16, 0, 2);
                v[c] = load_kv(values + j * t.head_dim_padded + c * 16);
            }
            for (int r = 0; r < kRows; ++r) {
                const V16 w = set1(weights[r * kSpan + j]);
                for (int c = 0; c < kVecs; ++c) acc[r][c] = fma(w, v[c], acc[r][c]);
            }
        }
        // The few positions that only some rows see. A weight of zero would not do: the value may be NaN.
        for (; j < end; ++j)
            for (int r = 0; r < kRows; ++r) {
                if (start + j >= t.limits[row + r]) continue;
                const V16 w = set1(weights[r * kSpan + j]);
                for (int c = 0; c < kVecs; ++c)
                    acc[r][c] = fma(w, load_kv(values + j * t.head_dim_padded + c * 16), acc[r][c]);
            }
    }
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kVecs; ++c) store(t.values + (row + r) * t.head_dim_padded + column + c * 16, acc[r][c]);
}

template <class T, int kRows>
static inline void attend_rows(const AttentionTile& t, int row) {
    int most = 0;
    for (int r = 0; r < kRows; ++r) most = t.limits[row + r] > most ? t.limits[row + r] : most;
    const int num_groups = (most + kGroup - 1) / kGroup;
    score_rows<T, kRows>(t, row, num_groups);
    for (int r = 0; r < kRows; ++r)
        soften(t.scores + (row + r) * kSpan, t.limits[row + r], num_groups * kGroup, t.max + row + r, t.sum + row + r);
    int column = 0;
    for (; column + kTileVecs * 16 <= t.head_dim_padded; column += kTileVecs * 16)
        weigh_values<T, kRows, kTileVecs>(t, row, column, most);
    for (; column < t.head_dim_padded; column += 16) weigh_values<T, kRows, 1>(t, row, column, most);
}

template <class T>
static void attention(const AttentionTile& t) {
    int row = 0;
    for (; row + kTileRows <= t.rows; row += kTileRows) attend_rows<T, kTileRows>(t, row);
    const int left = t.rows - row;
    if constexpr (kTileRows > 5)
        if (left == 5) attend_rows<T, 5>(t, row);
    if constexpr (kTileRows > 4)
        if (left == 4) attend_rows<T, 4>(t, row);
    if constexpr (kTileRows > 3)
        if (left == 3) attend_rows<T, 3>(t, row);
    if constexpr (kTileRows > 2)
        if (left == 2) attend_rows<T, 2>(t, row);
    if (left == 1) attend_rows<T, 1>(t, row);
}

static void merge_span(float* state_max, float* state_sum, float* state_values, float max_new, float sum_new,
                       const float* values, int n) {
    const float peak = *state_max > max_new ? *state_max : max_new;
    float factors[16] = {*state_max - peak, max_new - peak};
    store(factors, exp2(load(factors)));
    const V16 keep = set1(factors[0]), take = set1(factors[1]);
    *state_sum = *state_sum * factors[0] + sum_new * factors[1];
    *state_max = peak;
    for (int i = 0; i < n; i += 16)
        store(state_values + i, fma(load(values + i), take, mul(load(state_values + i), keep)));
}

static void divide(const float* values, float sum, int n, float* out) {
    const V16 d = set1(sum);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, div(load(values + i), d));
    if (i < n) store_tail(out + i, div(load(values + i), d), n - i);
}

static void write_key_bf16(const float* x, int n, uint16_t* group, int lane) {
    uint16_t words[16];
    for (int i = 0; i < n; i += 16) {
        const int m = n - i < 16 ? n - i : 16;
        store_bf16(words, m == 16 ? load(x + i) : load_tail(x + i, m));
        for (int j = 0; j < m; ++j) group[(i + j) * kGroup + lane] = words[j];
    }
}
static void write_key_fp32(const float* x, int n, float* group, int lane) {
    for (int i = 0; i < n; ++i) group[i * kGroup + lane] = x[i];
}
static void write_value_bf16(const float* x, int n, int n_padded, uint16_t* out) {
    for (int i = 0; i < n_padded; i += 16)
        store_bf16(out + i, n - i >= 16 ? load(x + i) : load_tail(x + i, n - i > 0 ? n - i : 0));
}
static void write_value_fp32(const float* x, int n, int n_padded, float* out) {
    for (int i = 0; i < n_padded; ++i) out[i] = i < n ? x[i] : 0.0f;
}

}  // namespace hotseat::HOTSEAT_ISA
