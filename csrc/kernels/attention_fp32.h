// Attention over keys and values of fp32, see attention.h.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// scores[r][g * 16 + lane] for kRows rows and kVecs tiles starting at `first`.
template <int kRows, int kVecs, bool kFetches>
static inline void score_tiles(const AttentionTile& t, int row, int first, float* scores) {
    V16 acc[kRows][kVecs];
    const float *keys[kVecs], *q[kRows];
    const uint8_t* next[kVecs];
    for (int g = 0; g < kVecs; ++g) keys[g] = static_cast<const float*>(t.partition->keys[first + g]);
    if constexpr (kFetches)
        for (int g = 0; g < kVecs; ++g) next[g] = next_keys(t, first + g);
    for (int r = 0; r < kRows; ++r) {
        q[r] = reinterpret_cast<const float*>(static_cast<const uint8_t*>(t.queries) + (row + r) * t.query_stride);
        for (int g = 0; g < kVecs; ++g) acc[r][g] = set1(0.0f);
    }
    for (int d = 0; d < t.head_dim; ++d) {
        V16 k[kVecs];
        for (int g = 0; g < kVecs; ++g) {
            if constexpr (kFetches) __builtin_prefetch(next[g] + d * kTile * sizeof(float), 0, 2);
            k[g] = load(keys[g] + d * kTile);
        }
        for (int r = 0; r < kRows; ++r) {
            const V16 x = set1(q[r][d]);
            for (int g = 0; g < kVecs; ++g) acc[r][g] = fma(x, k[g], acc[r][g]);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int g = 0; g < kVecs; ++g) store(scores + r * kPartition + (first + g) * kTile, acc[r][g]);
}

// Turn one row of scores into weights 2^(score - max); zero up to `padded`.
static inline void softmax_weights(float* scores, int limit, int padded, float* max_out, float* sum_out) {
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

template <int kRows, int kVecs, bool kFetches>
static inline void weight_values(const AttentionTile& t, int row, int column, int num_positions, const float* scores) {
    V16 acc[kRows][kVecs];
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kVecs; ++c) acc[r][c] = set1(0.0f);
    const int num_shared = seen_by_all(t, row, kRows);
    for (int start = 0; start < num_positions; start += kTile) {
        const float* values = static_cast<const float*>(t.partition->values[start / kTile]) + column;
        const int end = num_positions - start < kTile ? num_positions - start : kTile;
        const float *weights = scores + start, *next = values;
        if constexpr (kFetches) next = reinterpret_cast<const float*>(next_values(t, start / kTile)) + column;
        int j = 0;
        for (; j < end && start + j < num_shared; ++j) {
            V16 v[kVecs];
            for (int c = 0; c < kVecs; ++c) {
                if constexpr (kFetches) __builtin_prefetch(next + j * t.head_dim_padded + c * 16, 0, 2);
                v[c] = load(values + j * t.head_dim_padded + c * 16);
            }
            for (int r = 0; r < kRows; ++r) {
                const V16 w = set1(weights[r * kPartition + j]);
                for (int c = 0; c < kVecs; ++c) acc[r][c] = fma(w, v[c], acc[r][c]);
            }
        }
        // The few positions that only some rows see. A weight of zero would not do: the value may be NaN.
        for (; j < end; ++j)
            for (int r = 0; r < kRows; ++r) {
                if (start + j >= t.limits[row + r]) continue;
                const V16 w = set1(weights[r * kPartition + j]);
                for (int c = 0; c < kVecs; ++c)
                    acc[r][c] = fma(w, load(values + j * t.head_dim_padded + c * 16), acc[r][c]);
            }
    }
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kVecs; ++c)
            store(t.out.values + (row + r) * t.head_dim_padded + column + c * 16, acc[r][c]);
}

struct AttentionFp32 {
    static constexpr int fewer(int rows) { return rows - 1; }

    template <int kRows, bool kFetches>
    static void attend(const AttentionTile& t, int row) {
        alignas(64) float scores[kRows * kPartition];
        const int most = seen_by_any(t, row, kRows), num_tiles = (most + kTile - 1) / kTile;
        int g = 0;
        for (; g + kTileVecs <= num_tiles; g += kTileVecs) score_tiles<kRows, kTileVecs, kFetches>(t, row, g, scores);
        for (; g < num_tiles; ++g) score_tiles<kRows, 1, kFetches>(t, row, g, scores);
        const bool is_plain = t.starts == nullptr && t.softcap == 0.0f;
        for (int r = 0; r < kRows && !is_plain; ++r)
            adjust_scores(t, row + r, num_tiles * kTile, scores + r * kPartition);
        for (int r = 0; r < kRows; ++r)
            softmax_weights(scores + r * kPartition, t.limits[row + r], num_tiles * kTile, t.out.max + row + r,
                            t.out.sum + row + r);
        int column = 0;
        for (; column + kTileVecs * 16 <= t.head_dim_padded; column += kTileVecs * 16)
            weight_values<kRows, kTileVecs, kFetches>(t, row, column, most, scores);
        for (; column < t.head_dim_padded; column += 16)
            weight_values<kRows, 1, kFetches>(t, row, column, most, scores);
    }
};

static void attention_fp32(const AttentionTile& t) {
    attend_from<AttentionFp32, kTileRows>(t, 0);
    if (t.next != nullptr) fetch_rest(t, sizeof(float) * kTile * t.head_dim, sizeof(float) * kTile * t.head_dim_padded);
}

}  // namespace hotseat::HOTSEAT_ISA
