// Attention of a few query rows over one span of the paged KV cache: what fp32 and bf16 have in common.
//
// Theory of operation. A sequence's positions are cut into spans of 256 at absolute multiples of 256, and a span into
// groups of 16, because that is how the cache lies in memory (see SpanView).
//
// For one row and one span the arithmetic is always: scores by a chain over head_dim, their maximum, powers of two, the
// sum in 16 fixed lanes, and values by a chain over positions. Spans are merged in ascending order. How many rows go
// side by side, whether a row is part of a prefill or a lone decode, which thread does it and in what order spans are
// computed changes none of these chains, so a row's bits depend on its own sequence only. Positions at or beyond a
// row's limit take no part, whatever is in them, be it NaN.
//
// Blocks lie anywhere, so the hardware does not foresee them. While the first tile of a span is computed, all of the
// next span is fetched, each line when the line at its place in this span is read. A span and the next must fit in a
// core's own cache.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// Where the next span's group lies that is fetched during a group of this span: itself, if the next has none.
static inline const uint8_t* next_keys(const AttentionTile& t, int group) {
    return static_cast<const uint8_t*>((group < t.next->num_groups() ? t.next : t.span)->keys[group]);
}
static inline const uint8_t* next_values(const AttentionTile& t, int group) {
    return static_cast<const uint8_t*>((group < t.next->num_groups() ? t.next : t.span)->values[group]);
}

// Fetch what no group of this span has fetched: groups of the next span that this one does not have.
[[gnu::always_inline]] static inline void fetch_rest(const AttentionTile& t, size_t key_bytes, size_t value_bytes) {
    for (int g = t.span->num_groups(); g < t.next->num_groups(); ++g) {
        for (size_t i = 0; i < key_bytes; i += 64)
            __builtin_prefetch(static_cast<const uint8_t*>(t.next->keys[g]) + i, 0, 2);
        for (size_t i = 0; i < value_bytes; i += 64)
            __builtin_prefetch(static_cast<const uint8_t*>(t.next->values[g]) + i, 0, 2);
    }
}

// How many positions the rows [row, row + n) all see, and how many at least one of them.
static inline int seen_by_all(const AttentionTile& t, int row, int n) {
    int least = kSpan;
    for (int r = row; r < row + n; ++r) least = t.limits[r] < least ? t.limits[r] : least;
    return least;
}
static inline int seen_by_any(const AttentionTile& t, int row, int n) {
    int most = 0;
    for (int r = row; r < row + n; ++r) most = t.limits[r] > most ? t.limits[r] : most;
    return most;
}

// Up to 16 rows.
static inline void merge_rows(const AttentionState& state, const AttentionState& span, int rows, int n) {
    const V16 old_max = load_tail(state.max, rows), new_max = load_tail(span.max, rows);
    const V16 peak = max(old_max, new_max);
    const V16 keep = exp2(sub(old_max, peak)), take = exp2(sub(new_max, peak));
    const V16 old_sum = mul(load_tail(state.sum, rows), keep), new_sum = mul(load_tail(span.sum, rows), take);
    store_tail(state.max, peak, rows);
    store_tail(state.sum, add(old_sum, new_sum), rows);
    float keeps[16], takes[16];
    store(keeps, keep);
    store(takes, take);
    for (int r = 0; r < rows; ++r) {
        const V16 k = set1(keeps[r]), t = set1(takes[r]);
        float* values = state.values + r * n;
        for (int i = 0; i < n; i += 16)
            store(values + i, fma(load(span.values + r * n + i), t, mul(load(values + i), k)));
    }
}

static void merge_spans(const AttentionState& state, const AttentionState& span, int rows, int n) {
    for (int r = 0; r < rows; r += 16)
        merge_rows({state.max + r, state.sum + r, state.values + r * n},
                   {span.max + r, span.sum + r, span.values + r * n}, rows - r < 16 ? rows - r : 16, n);
}

static void divide(const float* values, float sum, int n, float* out) {
    const V16 d = set1(sum);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, div(load(values + i), d));
    if (i < n) store_tail(out + i, div(load(values + i), d), n - i);
}

// Two positions of a value, and all positions of a key, share a vector: threads that write neighbours must not touch
// each other's words, so each is stored by itself.
static void write_key_bf16(const float* x, int n, uint16_t* group, int lane) {
    uint16_t words[16];
    for (int i = 0; i < n; i += 16) {
        const int m = n - i < 16 ? n - i : 16;
        store_bf16(words, m == 16 ? load(x + i) : load_tail(x + i, m));
        for (int j = 0; j < m; j += 2) __builtin_memcpy(group + (i + j) * kGroup + 2 * lane, words + j, 4);
    }
}
static void write_key_fp32(const float* x, int n, float* group, int lane) {
    for (int i = 0; i < n; ++i) group[i * kGroup + lane] = x[i];
}
static void write_value_bf16(const float* x, int n, int n_padded, uint16_t* group, int lane) {
    uint16_t* out = group + lane / 2 * 2 * n_padded + lane % 2;
    uint16_t words[16];
    for (int i = 0; i < n_padded; i += 16) {
        store_bf16(words, n - i >= 16 ? load(x + i) : load_tail(x + i, n - i > 0 ? n - i : 0));
        for (int j = 0; j < 16; ++j) out[2 * (i + j)] = words[j];
    }
}
static void write_value_fp32(const float* x, int n, int n_padded, float* group, int lane) {
    for (int i = 0; i < n_padded; ++i) group[lane * n_padded + i] = i < n ? x[i] : 0.0f;
}

}  // namespace hotseat::HOTSEAT_ISA
