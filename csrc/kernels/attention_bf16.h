// Attention over keys and values of bf16, see attention.h, by dot products of bf16 pairs (dot_bf16 in simd/): queries
// are rounded to bf16, so are the weights 2^(score - max), and the sum is that of the rounded weights.
//
// A score is a chain over pairs of dimensions, a value a chain over pairs of positions 2i, 2i + 1. Where a row sees an
// odd number of positions, the last one's partner counts as weight 0 times value 0.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static void dot_bf16_lanes(const float* acc, const uint32_t* a, const uint32_t* b, float* out) {
    store(out, dot_bf16(load(acc), load_pairs(a), load_pairs(b)));
}

static inline uint32_t load_word(const void* p) {
    uint32_t word;
    __builtin_memcpy(&word, p, 4);
    return word;
}

// What a tile of rows needs besides the tile.
template <int kRows>
struct PairScratch {
    alignas(64) float scores[kRows][kPartition];
    alignas(64) float largest[kRows][16];  // in lanes
    alignas(64) uint16_t weights[kRows][kPartition];
};

// Of scores [start, end) those below the limit.
static void find_largest(const float* scores, int start, int end, int limit, float* largest) {
    const V16 lowest = set1(-__builtin_inff());
    for (int i = start; i < end; i += 16)
        store(largest, max(first_n(limit - i, load(scores + i), lowest), load(largest)));
}

// Scores of kRows rows and kVecs tiles starting at `first`, and the largest so far in lanes. Without `is_seen` some
// row does not see some of the positions.
template <int kRows, int kVecs, bool kFetches>
static inline void score_pairs(const AttentionTile& t, int row, int first, bool is_seen, PairScratch<kRows>& scratch) {
    V16 acc[kRows][kVecs];
    const uint8_t *keys[kVecs], *next[kVecs];
    for (int g = 0; g < kVecs; ++g) keys[g] = static_cast<const uint8_t*>(t.partition->keys[first + g]);
    if constexpr (kFetches)
        for (int g = 0; g < kVecs; ++g) next[g] = next_keys(t, first + g);
    for (int r = 0; r < kRows; ++r)
        for (int g = 0; g < kVecs; ++g) acc[r][g] = set1(0.0f);
    const size_t stride = t.query_stride;
    const uint8_t* q = static_cast<const uint8_t*>(t.queries) + row * stride;
    const size_t key_bytes = even_head_dim(t.head_dim) / 2 * 64;
    for (size_t i = 0; i < key_bytes; i += 64, q += 4) {
        Pairs k[kVecs];
        for (int g = 0; g < kVecs; ++g) {
            if constexpr (kFetches) __builtin_prefetch(next[g] + i, 0, 2);
            k[g] = load_pairs(keys[g] + i);
        }
        for (int r = 0; r < kRows; ++r) {
            const Pairs x = set_pairs(load_word(q + r * stride));
            for (int g = 0; g < kVecs; ++g) acc[r][g] = dot_bf16(acc[r][g], x, k[g]);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int g = 0; g < kVecs; ++g) store(scratch.scores[r] + (first + g) * kTile, acc[r][g]);
    if (is_seen)
        for (int r = 0; r < kRows; ++r) {
            V16 largest = load(scratch.largest[r]);
            for (int g = 0; g < kVecs; ++g) largest = max(acc[r][g], largest);
            store(scratch.largest[r], largest);
        }
    else
        for (int r = 0; r < kRows; ++r)
            find_largest(scratch.scores[r], first * kTile, (first + kVecs) * kTile, t.limits[row + r],
                         scratch.largest[r]);
}

// Turn one row of scores into rounded weights, zero beyond its limit in the last tile.
static inline void softmax_weight_pairs(const float* scores, const float* largest, int limit, uint16_t* weights,
                                        float* max_out, float* sum_out) {
    const float peak = reduce_max(load(largest));
    const V16 shift = set1(peak), zero = set1(0.0f);
    V16 total = zero;
    int i = 0;
    for (; i + 16 <= limit; i += 16) {
        const V16 weight = exp2_to_bf16(sub(load(scores + i), shift));
        store_low_halves(weights + i, weight);
        total = add(total, widen_low_halves(weight));
    }
    if (i < limit) {
        const V16 weight = first_n(limit - i, exp2_to_bf16(sub(load(scores + i), shift)), zero);
        store_low_halves(weights + i, weight);
        total = add(total, widen_low_halves(weight));
    }
    *max_out = peak;
    *sum_out = reduce_add(total);
}

// Values over the pairs that all rows see both positions of.
template <int kRows, int kVecs, bool kFetches>
static inline void weight_pairs(const AttentionTile& t, int row, int column, int num_pairs,
                                const PairScratch<kRows>& scratch) {
    V16 acc[kRows][kVecs];
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kVecs; ++c) acc[r][c] = set1(0.0f);
    const size_t pair_bytes = static_cast<size_t>(t.head_dim_padded) * 4;
    const uint16_t* weights = scratch.weights[0];
    for (int start = 0; start < num_pairs; start += kTile / 2) {
        const int tile = start / (kTile / 2), count = num_pairs - start < kTile / 2 ? num_pairs - start : kTile / 2;
        const uint8_t* values = static_cast<const uint8_t*>(t.partition->values[tile]) + column * 4;
        const uint8_t* next = values;
        if constexpr (kFetches) next = next_values(t, tile) + column * 4;
        for (int j = 0; j < count; ++j, values += pair_bytes, next += pair_bytes, weights += 2) {
            Pairs v[kVecs];
            for (int c = 0; c < kVecs; ++c) {
                if constexpr (kFetches) __builtin_prefetch(next + c * 64, 0, 2);
                v[c] = load_pairs(values + c * 64);
            }
            for (int r = 0; r < kRows; ++r) {
                const Pairs w = set_pairs(load_word(weights + r * kPartition));
                for (int c = 0; c < kVecs; ++c) acc[r][c] = dot_bf16(acc[r][c], w, v[c]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kVecs; ++c)
            store(t.out.values + (row + r) * t.head_dim_padded + column + c * 16, acc[r][c]);
}

// Go on with one row from `pair` to its limit. Beyond that a weight of zero would not do: the value may be NaN.
static inline void finish_pairs(const AttentionTile& t, int row, int pair, const uint16_t* weights) {
    const int limit = t.limits[row];
    float* out = t.out.values + row * t.head_dim_padded;
    for (; 2 * pair < limit; ++pair) {
        const uint8_t* values = static_cast<const uint8_t*>(t.partition->values[2 * pair / kTile]) +
                                static_cast<size_t>(pair % (kTile / 2)) * t.head_dim_padded * 4;
        const Pairs w = set_pairs(load_word(weights + 2 * pair));
        const bool is_whole = 2 * pair + 1 < limit;
        for (int column = 0; column < t.head_dim_padded; column += 16) {
            const Pairs v = load_pairs(values + column * 4);
            store(out + column, dot_bf16(load(out + column), w, is_whole ? v : even_halves(v)));
        }
    }
}

struct AttentionBf16 {
    static constexpr int fewer(int rows) { return rows > 6 ? 6 : rows - 1; }

    template <int kRows, bool kFetches>
    static void attend(const AttentionTile& t, int row) {
        constexpr int kVecs = pair_vecs(kRows);
        PairScratch<kRows> scratch;
        const int least = seen_by_all(t, row, kRows), most = seen_by_any(t, row, kRows);
        const int num_tiles = (most + kTile - 1) / kTile;
        for (int r = 0; r < kRows; ++r) store(scratch.largest[r], set1(-__builtin_inff()));
        int g = 0;
        for (; g + kVecs <= num_tiles; g += kVecs)
            score_pairs<kRows, kVecs, kFetches>(t, row, g, (g + kVecs) * kTile <= least, scratch);
        if constexpr (kVecs > 1)
            for (; g < num_tiles; ++g) score_pairs<kRows, 1, kFetches>(t, row, g, (g + 1) * kTile <= least, scratch);
        const bool is_plain = t.starts == nullptr && t.softcap == 0.0f;
        for (int r = 0; r < kRows && !is_plain; ++r) {
            adjust_scores(t, row + r, num_tiles * kTile, scratch.scores[r]);
            store(scratch.largest[r], set1(-__builtin_inff()));
            find_largest(scratch.scores[r], 0, num_tiles * kTile, t.limits[row + r], scratch.largest[r]);
        }
        for (int r = 0; r < kRows; ++r)
            softmax_weight_pairs(scratch.scores[r], scratch.largest[r], t.limits[row + r], scratch.weights[r],
                                 t.out.max + row + r, t.out.sum + row + r);
        // The smallest weight is 2^-126, not 0; it takes no part in a sum of at least 1, but it must not in the values.
        for (int r = 0; r < kRows && t.starts != nullptr; ++r)
            for (int i = 0; i < t.starts[row + r] && i < kPartition; ++i) scratch.weights[r][i] = 0;
        int column = 0;
        for (; column + kVecs * 16 <= t.head_dim_padded; column += kVecs * 16)
            weight_pairs<kRows, kVecs, kFetches>(t, row, column, least / 2, scratch);
        if constexpr (kVecs > 1)
            for (; column < t.head_dim_padded; column += 16)
                weight_pairs<kRows, 1, kFetches>(t, row, column, least / 2, scratch);
        for (int r = 0; r < kRows; ++r) finish_pairs(t, row + r, least / 2, scratch.weights[r]);
    }
};

static void attention_bf16(const AttentionTile& t) {
    attend_from<AttentionBf16, kPairRows>(t, 0);
    if (t.next != nullptr)
        fetch_rest(t, sizeof(uint16_t) * kTile * even_head_dim(t.head_dim),
                   sizeof(uint16_t) * kTile * t.head_dim_padded);
}

}  // namespace hotseat::HOTSEAT_ISA
