// Attention of a few query rows over one partition of the paged KV cache: what fp32 and bf16 have in common.
//
// Theory of operation. A sequence's positions are cut into partitions of 256 at absolute multiples of 256, and a
// partition into tiles of 16, because that is how the cache lies in memory (see KvPartition).
//
// For one row and one partition the arithmetic is always: scores by a chain over head_dim, their maximum, powers of
// two, the sum in 16 fixed lanes, and values by a chain over positions. Partitions are merged in ascending order. How
// many rows go side by side, whether a row is part of a prefill or a lone decode, which thread does it and in what
// order partitions are computed changes none of these chains, so a row's bits depend on its own sequence only.
// Positions at or beyond a row's limit take no part, whatever is in them, be it NaN.
//
// Blocks lie anywhere, so the hardware does not foresee them. While the first tile of a partition is computed, all of
// the next partition is fetched, each line when the line at its place in this partition is read. A partition and the
// next must fit in a core's own cache.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// Where the next partition's tile lies that is fetched during a tile of this partition: itself, if the next has none.
static inline const uint8_t* next_keys(const AttentionTile& t, int tile) {
    return static_cast<const uint8_t*>((tile < t.next->num_tiles() ? t.next : t.partition)->keys[tile]);
}
static inline const uint8_t* next_values(const AttentionTile& t, int tile) {
    return static_cast<const uint8_t*>((tile < t.next->num_tiles() ? t.next : t.partition)->values[tile]);
}

// Fetch what no tile of this partition has fetched: tiles of the next partition that this one does not have.
[[gnu::always_inline]] static inline void fetch_rest(const AttentionTile& t, size_t key_bytes, size_t value_bytes) {
    for (int g = t.partition->num_tiles(); g < t.next->num_tiles(); ++g) {
        for (size_t i = 0; i < key_bytes; i += 64)
            __builtin_prefetch(static_cast<const uint8_t*>(t.next->keys[g]) + i, 0, 2);
        for (size_t i = 0; i < value_bytes; i += 64)
            __builtin_prefetch(static_cast<const uint8_t*>(t.next->values[g]) + i, 0, 2);
    }
}

// How many positions the rows [row, row + n) all see, and how many at least one of them.
static inline int seen_by_all(const AttentionTile& t, int row, int n) {
    int least = kPartition;
    for (int r = row; r < row + n; ++r) least = t.limits[r] < least ? t.limits[r] : least;
    return least;
}
static inline int seen_by_any(const AttentionTile& t, int row, int n) {
    int most = 0;
    for (int r = row; r < row + n; ++r) most = t.limits[r] > most ? t.limits[r] : most;
    return most;
}

// The maximum of a row that sees no position: below every score, and finite, so that differences of it are numbers.
static inline constexpr float kSeesNothing = -3e38f;

static inline bool sees_nothing(const AttentionTile& t, int row) {
    return t.starts != nullptr && t.starts[row] >= t.limits[row];
}

// Soft-cap the scores [0, count) of one row and hide those before its window: for models that have either.
static inline void adjust_scores(const AttentionTile& t, int row, int count, float* scores) {
    if (t.softcap > 0.0f) {
        const V16 cap = set1(t.softcap);
        for (int i = 0; i < count; i += 16) store(scores + i, softcap(load(scores + i), cap));
    }
    if (t.starts == nullptr) return;
    const int end = t.starts[row] < count ? t.starts[row] : count;
    for (int i = 0; i < end; ++i) scores[i] = -__builtin_inff();
}

// The result of a row that sees nothing.
static inline void write_nothing(const AttentionTile& t, int row) {
    t.out.max[row] = kSeesNothing;
    t.out.sum[row] = 0.0f;
    float* values = t.out.values + row * t.head_dim_padded;
    for (int i = 0; i < t.head_dim_padded; ++i) values[i] = -0.0f;
}

// All rows of a tile from `row` on: as many at a time as fit, then fewer. `Kernel` has
//     template <int kRows, bool kFetches> static void attend(const AttentionTile& t, int row);
//     static constexpr int fewer(int rows);  // how many are tried next, 0 after 1
// The first rows also fetch the next partition.
template <class Kernel, int kRows>
static inline void attend_from(const AttentionTile& t, int row) {
    for (; row + kRows <= t.rows; row += kRows) {
        if (row == 0 && t.next != nullptr)
            Kernel::template attend<kRows, true>(t, row);
        else
            Kernel::template attend<kRows, false>(t, row);
        for (int r = row; r < row + kRows; ++r)
            if (sees_nothing(t, r)) write_nothing(t, r);
    }
    if constexpr (Kernel::fewer(kRows) > 0) attend_from<Kernel, Kernel::fewer(kRows)>(t, row);
}

// Up to 16 rows.
static inline void merge_rows(const AttentionState& state, const AttentionState& partition, int rows, int n) {
    const V16 old_max = load_tail(state.max, rows), new_max = load_tail(partition.max, rows);
    const V16 peak = max(old_max, new_max);
    const V16 keep = exp2(sub(old_max, peak)), take = exp2(sub(new_max, peak));
    const V16 old_sum = mul(load_tail(state.sum, rows), keep), new_sum = mul(load_tail(partition.sum, rows), take);
    store_tail(state.max, peak, rows);
    store_tail(state.sum, add(old_sum, new_sum), rows);
    float keeps[16], takes[16];
    store(keeps, keep);
    store(takes, take);
    for (int r = 0; r < rows; ++r) {
        const V16 k = set1(keeps[r]), t = set1(takes[r]);
        float* values = state.values + r * n;
        for (int i = 0; i < n; i += 16)
            store(values + i, fma(load(partition.values + r * n + i), t, mul(load(values + i), k)));
    }
}

static void merge_partitions(const AttentionState& state, const AttentionState& partition, int rows, int n) {
    for (int r = 0; r < rows; r += 16)
        merge_rows({state.max + r, state.sum + r, state.values + r * n},
                   {partition.max + r, partition.sum + r, partition.values + r * n}, rows - r < 16 ? rows - r : 16, n);
}

static void divide(const float* values, float sum, int n, float* out) {
    const V16 d = set1(sum);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, div(load(values + i), d));
    if (i < n) store_tail(out + i, div(load(values + i), d), n - i);
}

// Two positions of a value, and all positions of a key, share a vector: threads that write neighbours must not touch
// each other's words, so each is stored by itself.
static void write_key_bf16(const float* x, int n, uint16_t* tile, int lane) {
    uint16_t words[16];
    for (int i = 0; i < n; i += 16) {
        const int m = n - i < 16 ? n - i : 16;
        store_bf16(words, m == 16 ? load(x + i) : load_tail(x + i, m));
        for (int j = 0; j < m; j += 2) __builtin_memcpy(tile + (i + j) * kTile + 2 * lane, words + j, 4);
    }
}
static void write_key_fp32(const float* x, int n, float* tile, int lane) {
    for (int i = 0; i < n; ++i) tile[i * kTile + lane] = x[i];
}
static void write_value_bf16(const float* x, int n, int n_padded, uint16_t* tile, int lane) {
    uint16_t* out = tile + lane / 2 * 2 * n_padded + lane % 2;
    uint16_t words[16];
    for (int i = 0; i < n_padded; i += 16) {
        store_bf16(words, n - i >= 16 ? load(x + i) : load_tail(x + i, n - i > 0 ? n - i : 0));
        for (int j = 0; j < 16; ++j) out[2 * (i + j)] = words[j];
    }
}
static void write_value_fp32(const float* x, int n, int n_padded, float* tile, int lane) {
    for (int i = 0; i < n_padded; ++i) tile[lane * n_padded + i] = i < n ? x[i] : 0.0f;
}

}  // namespace hotseat::HOTSEAT_ISA
