// How attention's work is cut into items, and how spans become rows. The
// arithmetic is in kernels/attention.h.
//
// A member's scratch: keys and values of one span in fp32 (prefill only),
// scores of a tile, results of a span and running states of all query rows of
// an item.
#include <algorithm>
#include <limits>

#include "decoder/decoder.h"

namespace hotseat {

namespace {

constexpr int kQueriesPerItem = 32;

int num_spans(int length) { return (length + kSpan - 1) / kSpan; }

}  // namespace

// One span's result of one KV head: for each query head of the group its
// values, then maxima, then sums.
float* Decoder::partial(int chunk, int head, int span) const {
    const size_t floats = static_cast<size_t>(group_size_) * (kv_.head_dim_padded() + 2);
    const size_t index = static_cast<size_t>(span) * shape_.num_kv_heads + head;
    return const_cast<float*>(partials_.data()) + partial_start_[chunk] + index * floats;
}

void Decoder::plan_attention() {
    items_.clear();
    size_t num_floats = 0;
    const size_t floats_per_partial = static_cast<size_t>(group_size_) * (kv_.head_dim_padded() + 2);
    int longest_query = 0;
    for (int chunk = 0; chunk < counts_.num_chunks; ++chunk) {
        const int first = batch_.query_start[chunk], num_queries = batch_.query_start[chunk + 1] - first;
        std::fill_n(chunk_of_row_.begin() + first, num_queries, chunk);
        longest_query = std::max(longest_query, num_queries);
        if (num_queries > 1) {
            // The last queries see most: they go first, so that no long item starts
            // last.
            for (int start = (num_queries - 1) / kQueriesPerItem * kQueriesPerItem; start >= 0;
                 start -= kQueriesPerItem)
                for (int head = 0; head < shape_.num_kv_heads; ++head)
                    items_.push_back({chunk, head, -1, start, std::min(kQueriesPerItem, num_queries - start)});
        } else {
            partial_start_[chunk] = num_floats;
            const int spans = num_spans(batch_.context_lens[chunk]);
            num_floats += static_cast<size_t>(spans) * shape_.num_kv_heads * floats_per_partial;
            for (int span = 0; span < spans; ++span)
                for (int head = 0; head < shape_.num_kv_heads; ++head) items_.push_back({chunk, head, span, 0, 1});
        }
    }
    std::stable_partition(items_.begin(), items_.end(), [](const AttentionItem& item) { return item.span < 0; });
    if (partials_.size() < num_floats) partials_.resize(num_floats);
    const size_t rows = static_cast<size_t>(group_size_) * std::min(kQueriesPerItem, longest_query);
    const size_t dim = kv_.head_dim_padded();
    const size_t needed = (2 * kSpan * dim + rows * (kSpan + 2 * dim + 4)) * sizeof(float);
    for (Scratch& scratch : scratch_)
        if (scratch.attention.size() < needed) scratch.attention = Memory(needed);
}

void Decoder::attend(int layer, const AttentionItem& item, Scratch& scratch) {
    if (item.span >= 0)
        attend_decode(layer, item, scratch);
    else
        attend_prefill(layer, item, scratch);
}

void Decoder::attend_decode(int layer, const AttentionItem& item, Scratch& scratch) {
    const int row = batch_.query_start[item.chunk], dim = shape_.head_dim, padded = kv_.head_dim_padded();
    const auto view_of = [&](const AttentionItem& i) {
        return kv_.view(layer, i.head, block_table(i.chunk), i.span, batch_.context_lens[i.chunk]);
    };
    const SpanView span = view_of(item);
    // The item that this member will most likely take next; decodes are the last items.
    const bool is_last = &item == &items_.back();
    const SpanView next = is_last ? span : view_of(*(&item + 1));
    const bool has_next = !is_last && next.num_positions >= kFetchedGroups * kGroup;
    const float* q = qkv_.as<float>() + static_cast<size_t>(row) * (q_size_ + 2 * kv_size_) +
                     static_cast<size_t>(item.head) * group_size_ * dim;
    float* out = partial(item.chunk, item.head, item.span);
    // A group wider than a tile of pointers goes in slices.
    constexpr int kSlice = 16;
    for (int first = 0; first < group_size_; first += kSlice) {
        const int rows = std::min(kSlice, group_size_ - first);
        const float* queries[kSlice];
        int limits[kSlice];
        for (int r = 0; r < rows; ++r) {
            queries[r] = q + (first + r) * dim;
            limits[r] = span.num_positions;
        }
        const AttentionTile tile{
            .queries = queries,
            .limits = limits,
            .rows = rows,
            .head_dim = dim,
            .head_dim_padded = padded,
            .span = &span,
            .next = has_next ? &next : nullptr,
            .scores = scratch.attention.as<float>(),
            .max = out + group_size_ * padded + first,
            .sum = out + group_size_ * (padded + 1) + first,
            .values = out + first * padded,
        };
        (limits_.kv_is_fp32 ? kernels_.attention_fp32 : kernels_.attention_bf16)(tile);
    }
}

// Merge the spans of a decode row into attention output; a prefill row is
// finished already.
void Decoder::finish_decode_row(int row, float* out) const {
    const int chunk = chunk_of_row_[row], dim = shape_.head_dim, padded = kv_.head_dim_padded();
    if (batch_.query_start[chunk + 1] - batch_.query_start[chunk] > 1) return;
    const int spans = num_spans(batch_.context_lens[chunk]);
    for (int head = 0; head < shape_.num_kv_heads; ++head)
        for (int r = 0; r < group_size_; ++r) {
            float* state = partial(chunk, head, 0);
            float *max = state + group_size_ * padded + r, *sum = state + group_size_ * (padded + 1) + r;
            for (int span = 1; span < spans; ++span) {
                const float* next = partial(chunk, head, span);
                kernels_.merge_span(max, sum, state + r * padded, next[group_size_ * padded + r],
                                    next[group_size_ * (padded + 1) + r], next + r * padded, padded);
            }
            kernels_.divide(state + r * padded, *sum, dim, out + (head * group_size_ + r) * dim);
        }
}

void Decoder::attend_prefill(int layer, const AttentionItem& item, Scratch& scratch) {
    const int dim = shape_.head_dim, padded = kv_.head_dim_padded(), rows = item.num_queries * group_size_;
    const int first_row = batch_.query_start[item.chunk] + item.first_query;
    const int first_position = batch_.positions[first_row];
    const size_t stride = q_size_ + 2 * kv_size_;
    float* wide = scratch.attention.as<float>();
    float* scores = wide + 2 * kSpan * padded;
    float* results = scores + rows * kSpan;  // values, then maxima, then sums
    float* states = results + rows * (padded + 2);
    float *state_max = states + rows * padded, *state_sum = state_max + rows;
    const float* queries[kMaxTileRows];
    int limits[kMaxTileRows];

    const int length = first_position + item.num_queries;
    for (int s = 0; s < num_spans(length); ++s) {
        SpanView span = kv_.view(layer, item.head, block_table(item.chunk), s, length);
        if (!limits_.kv_is_fp32)
            for (int g = 0; g * kGroup < span.num_positions; ++g) {
                float *keys = wide + g * kGroup * dim, *values = wide + kSpan * padded + g * kGroup * padded;
                kernels_.widen(static_cast<const uint16_t*>(span.keys[g]), kGroup * dim, keys);
                // Positions beyond the end hold whatever was there before: they are not
                // read below.
                kernels_.widen(static_cast<const uint16_t*>(span.values[g]), kGroup * padded, values);
                span.keys[g] = keys;
                span.values[g] = values;
            }
        for (int first = 0; first < rows; first += kMaxTileRows) {
            const int num = std::min(kMaxTileRows, rows - first);
            int most = 0;
            for (int r = 0; r < num; ++r) {
                const int query = (first + r) / group_size_, head = (first + r) % group_size_;
                queries[r] = qkv_.as<float>() + (first_row + query) * stride + (item.head * group_size_ + head) * dim;
                limits[r] = std::clamp(first_position + query + 1 - s * kSpan, 0, kSpan);
                most = std::max(most, limits[r]);
            }
            if (most == 0) continue;
            float *max = results + rows * padded + first, *sum = max + rows, *values = results + first * padded;
            kernels_.attention_fp32({
                .queries = queries,
                .limits = limits,
                .rows = num,
                .head_dim = dim,
                .head_dim_padded = padded,
                .span = &span,
                .next = nullptr,
                .scores = scores + first * kSpan,
                .max = max,
                .sum = sum,
                .values = values,
            });
            for (int r = 0; r < num; ++r) {
                if (limits[r] == 0) continue;
                float* state = states + (first + r) * padded;
                if (s == 0) {
                    std::copy_n(values + r * padded, padded, state);
                    state_max[first + r] = max[r];
                    state_sum[first + r] = sum[r];
                } else {
                    kernels_.merge_span(state_max + first + r, state_sum + first + r, state, max[r], sum[r],
                                        values + r * padded, padded);
                }
            }
        }
    }
    for (int i = 0; i < rows; ++i) {
        const int query = i / group_size_, head = item.head * group_size_ + i % group_size_;
        kernels_.divide(states + i * padded, state_sum[i], dim,
                        attended_.as<float>() + static_cast<size_t>(first_row + query) * q_size_ + head * dim);
    }
}

}  // namespace hotseat
