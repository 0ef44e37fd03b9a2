// How attention's work is cut into items, and how partitions become rows. The
// arithmetic is in kernels/attention.h.
//
// A worker's scratch, for prefills: running states of all query rows of an item,
// and results of one partition for a tile of them.
#include <algorithm>

#include "decoder/decoder.h"

namespace hotseat {

namespace {

constexpr int kQueriesPerItem = 32;

int num_partitions(int length) { return (length + kPartition - 1) / kPartition; }

// Values, then maxima, then sums.
AttentionState states_in(float* memory, int rows, int padded) {
    return {memory + rows * padded, memory + rows * (padded + 1), memory};
}

AttentionState from_row(const AttentionState& states, int row, int padded) {
    return {states.max + row, states.sum + row, states.values + row * padded};
}

}  // namespace

// One partition's result of one KV head: for each query head of the tile its
// values, then maxima, then sums.
float* Decoder::partial(int chunk, int head, int partition) const {
    const size_t floats = static_cast<size_t>(query_group_size_) * (kv_.head_dim_padded() + 2);
    const size_t index = static_cast<size_t>(partition) * shape_.num_kv_heads + head;
    return const_cast<float*>(partials_.data()) + partial_start_[chunk] + index * floats;
}

void Decoder::plan_attention() {
    items_.clear();
    size_t num_floats = 0;
    const size_t floats_per_partial = static_cast<size_t>(query_group_size_) * (kv_.head_dim_padded() + 2);
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
            const int partitions = num_partitions(batch_.context_lens[chunk]);
            num_floats += static_cast<size_t>(partitions) * shape_.num_kv_heads * floats_per_partial;
            for (int partition = 0; partition < partitions; ++partition)
                for (int head = 0; head < shape_.num_kv_heads; ++head) items_.push_back({chunk, head, partition, 0, 1});
        }
    }
    std::stable_partition(items_.begin(), items_.end(), [](const AttentionItem& item) { return item.partition < 0; });
    if (partials_.size() < num_floats) partials_.resize(num_floats);
    const size_t rows = static_cast<size_t>(query_group_size_) * std::min(kQueriesPerItem, longest_query);
    const size_t dim = kv_.head_dim_padded();
    const size_t needed = (rows + kAttentionRows) * (dim + 2) * sizeof(float);
    for (Scratch& scratch : scratch_)
        if (scratch.attention.size() < needed) scratch.attention = Memory(needed);
}

void Decoder::attend(int layer, const AttentionItem& item, Scratch& scratch) {
    if (item.partition >= 0)
        attend_decode(layer, item);
    else
        attend_prefill(layer, item, scratch.attention);
}

// The queries of a KV head's tile of query heads, row by row.
uint8_t* Decoder::queries(int head, int row) const {
    const size_t index = (static_cast<size_t>(head) * limits_.max_num_batched_tokens + row) * query_group_size_;
    return queries_.as<uint8_t>() + index * query_stride_;
}

void Decoder::attend_tile(const AttentionTile& tile) const {
    (limits_.kv_is_fp32 ? kernels_.attention_fp32 : kernels_.attention_bf16)(tile);
}

void Decoder::attend_decode(int layer, const AttentionItem& item) {
    const int padded = kv_.head_dim_padded();
    const auto view_of = [&](const AttentionItem& i) {
        const int length = batch_.context_lens[i.chunk];
        return kv_.view(layer, i.head, block_table(layer, i.chunk), i.partition, window_start(layer, length - 1),
                        length);
    };
    const int context_len = batch_.context_lens[item.chunk];
    const int window = window_start(layer, context_len - 1), first_position = item.partition * kPartition;
    if (window >= first_position + kPartition) return;  // the row sees nothing of it
    const KvPartition partition = view_of(item);
    // The item that this worker will most likely take next; decodes are the last items.
    const bool is_last = &item == &items_.back();
    const KvPartition next = is_last ? partition : view_of(*(&item + 1));
    const AttentionState results = states_in(partial(item.chunk, item.head, item.partition), query_group_size_, padded);
    int limits[kAttentionRows];
    int starts[kAttentionRows];
    std::fill_n(limits, kAttentionRows, partition.num_positions);
    std::fill_n(starts, kAttentionRows, window - first_position);
    for (int first = 0; first < query_group_size_; first += kAttentionRows)
        attend_tile({
            .queries = queries(item.head, batch_.query_start[item.chunk]) + first * query_stride_,
            .query_stride = query_stride_,
            .limits = limits,
            .starts = window > first_position ? starts : nullptr,
            .softcap = shape_.attention_softcap * kLog2E,
            .rows = std::min(kAttentionRows, query_group_size_ - first),
            .head_dim = shape_.head_dim,
            .head_dim_padded = padded,
            .partition = &partition,
            .next = is_last || first > 0 ? nullptr : &next,
            .out = from_row(results, first, padded),
        });
}

// Merge the partitions of a decode row into attention output; a prefill row is
// finished already.
void Decoder::finish_decode_row(int layer, int row, float* out) const {
    const int chunk = chunk_of_row_[row], dim = shape_.head_dim, padded = kv_.head_dim_padded();
    if (batch_.query_start[chunk + 1] - batch_.query_start[chunk] > 1) return;
    const int partitions = num_partitions(batch_.context_lens[chunk]);
    const int first = window_start(layer, batch_.context_lens[chunk] - 1) / kPartition;
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
        const AttentionState state = states_in(partial(chunk, head, first), query_group_size_, padded);
        for (int partition = first + 1; partition < partitions; ++partition) {
            const AttentionState next = states_in(partial(chunk, head, partition), query_group_size_, padded);
            for (int r = 0; r < query_group_size_; r += kAttentionRows)
                kernels_.merge_partitions(from_row(state, r, padded), from_row(next, r, padded),
                                          std::min(kAttentionRows, query_group_size_ - r), padded);
        }
        merge_sinks(layer, head, state, query_group_size_);
        for (int r = 0; r < query_group_size_; ++r)
            kernels_.divide(state.values + r * padded, state.sum[r], dim, out + (head * query_group_size_ + r) * dim);
    }
}

// One more score without a value for each row of a KV head, merged as if it were a partition.
void Decoder::merge_sinks(int layer, int head, const AttentionState& states, int rows) const {
    const std::vector<float>& sinks = layers_[layer].sinks;
    if (sinks.empty()) return;
    const int padded = kv_.head_dim_padded();
    for (int row = 0; row < rows; ++row) {
        float score = sinks[head * query_group_size_ + row % query_group_size_] * kLog2E, one = 1.0f;
        kernels_.merge_partitions(from_row(states, row, padded), {&score, &one, zeros_.as<float>()}, 1, padded);
    }
}

// Rows of an item against one partition, from the first row that sees it.
void Decoder::attend_partition(int layer, const AttentionItem& item, int partition_index, const KvPartition& partition,
                               const KvPartition* next, const AttentionState& states,
                               const AttentionState& results) const {
    const int padded = kv_.head_dim_padded(), rows = item.num_queries * query_group_size_;
    const int first_row = batch_.query_start[item.chunk] + item.first_query;
    const int before =
        batch_.positions[first_row] - partition_index * kPartition;  // the first query's place in the partition
    const int first_partition = window_start(layer, batch_.positions[first_row]) / kPartition;
    int limits[kAttentionRows], starts[kAttentionRows];
    for (int first = std::max(-before, 0) * query_group_size_; first < rows; first += kAttentionRows) {
        const int num = std::min(kAttentionRows, rows - first);
        bool has_starts = false;
        for (int r = 0; r < num; ++r) {
            const int query = (first + r) / query_group_size_;
            limits[r] = std::min(before + query + 1, kPartition);
            starts[r] = window_start(layer, batch_.positions[first_row] + query) - partition_index * kPartition;
            has_starts |= starts[r] > 0;
        }
        const AttentionState state = from_row(states, first, padded);
        attend_tile({
            .queries = queries(item.head, first_row) + first * query_stride_,
            .query_stride = query_stride_,
            .limits = limits,
            .starts = has_starts ? starts : nullptr,
            .softcap = shape_.attention_softcap * kLog2E,
            .rows = num,
            .head_dim = shape_.head_dim,
            .head_dim_padded = padded,
            .partition = &partition,
            .next = next,
            .out = partition_index == first_partition ? state : results,
        });
        if (partition_index > first_partition) kernels_.merge_partitions(state, results, num, padded);
        next = nullptr;
    }
}

void Decoder::attend_prefill(int layer, const AttentionItem& item, const Memory& scratch) {
    const int dim = shape_.head_dim, padded = kv_.head_dim_padded(), rows = item.num_queries * query_group_size_;
    const int first_row = batch_.query_start[item.chunk] + item.first_query;
    const int length = batch_.positions[first_row] + item.num_queries;
    const AttentionState states = states_in(scratch.as<float>(), rows, padded);
    const AttentionState results = states_in(scratch.as<float>() + rows * (padded + 2), kAttentionRows, padded);
    const int seen_from = window_start(layer, batch_.positions[first_row]), first = seen_from / kPartition;
    const auto view_of = [&](int s) {
        return kv_.view(layer, item.head, block_table(layer, item.chunk), s, seen_from, length);
    };
    KvPartition partition = view_of(first);
    for (int s = first; s < num_partitions(length); ++s) {
        const bool is_last = s + 1 == num_partitions(length);
        const KvPartition next = is_last ? partition : view_of(s + 1);
        attend_partition(layer, item, s, partition, is_last ? nullptr : &next, states, results);
        partition = next;
    }
    merge_sinks(layer, item.head, states, rows);
    for (int i = 0; i < rows; ++i) {
        const int query = i / query_group_size_, head = item.head * query_group_size_ + i % query_group_size_;
        kernels_.divide(states.values + i * padded, states.sum[i], dim,
                        attended_.as<float>() + static_cast<size_t>(first_row + query) * q_size_ + head * dim);
    }
}

}  // namespace hotseat
