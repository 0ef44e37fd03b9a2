#include "decoder/flatten.h"

#include <algorithm>
#include <stdexcept>

namespace hotseat {

namespace {

void require(bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

}  // namespace

BatchCounts Flattener::flatten(const std::vector<Chunk>& chunks) const {
    require(chunks.size() <= static_cast<size_t>(sequences_.num_seats), "a batch has more chunks than there are seats");
    BatchCounts counts{};
    batch_.query_start[0] = 0;
    for (const Chunk& chunk : chunks) {
        check(chunk);
        require(chunk.end - chunk.start <= max_num_tokens_ - counts.num_tokens,
                "a batch has more tokens than a step may compute");
        const int first_row = counts.num_tokens;
        add_rows(chunk, counts);
        if (chunk.samples) add_samples(chunk, counts);
        if (sequences_.sampling[chunk.seat].num_prompt_logprobs >= 0) add_prompt_rows(chunk, first_row, counts);
    }
    return counts;
}

void Flattener::check(const Chunk& chunk) const {
    require(0 <= chunk.seat && chunk.seat < sequences_.num_seats, "a chunk has no seat");
    require(0 <= chunk.start && chunk.start < chunk.end, "a chunk has no tokens");
    const int num_drafts = sequences_.num_drafts[chunk.seat];
    const int num_known = sequences_.num_tokens[chunk.seat] + num_drafts;
    require(chunk.end <= std::min(num_known, sequences_.capacity[chunk.seat]), "a chunk exceeds its seat");
    require(num_drafts == 0 || (chunk.samples && chunk.end == num_known && chunk.start == num_known - num_drafts - 1),
            "drafts follow one token");
}

// One row, and one more for each draft.
void Flattener::add_samples(const Chunk& chunk, BatchCounts& counts) const {
    const int num_drafts = sequences_.num_drafts[chunk.seat];
    require(num_drafts < max_num_samples_ - counts.num_samples, "a batch has more drafts than a step may verify");
    for (int i = 0; i <= num_drafts; ++i) {
        batch_.sample_seats[counts.num_samples] = chunk.seat;
        batch_.sample_drafts[counts.num_samples] = i;
        batch_.sample_rows[counts.num_samples++] = counts.num_tokens - 1 - num_drafts + i;
    }
}

void Flattener::add_rows(const Chunk& chunk, BatchCounts& counts) const {
    const int32_t* tokens = sequences_.tokens + chunk.seat * sequences_.stride;
    for (int position = chunk.start; position < chunk.end; ++position) {
        batch_.token_ids[counts.num_tokens] = tokens[position];
        batch_.positions[counts.num_tokens++] = position;
    }
    batch_.seats[counts.num_chunks] = chunk.seat;
    batch_.context_lens[counts.num_chunks] = chunk.end;
    batch_.writes_kv[counts.num_chunks] = chunk.writes_kv;
    batch_.query_start[++counts.num_chunks] = counts.num_tokens;
}

// The rows whose next token is in the prompt.
void Flattener::add_prompt_rows(const Chunk& chunk, int first_row, BatchCounts& counts) const {
    const int32_t* tokens = sequences_.tokens + chunk.seat * sequences_.stride;
    const int end = std::min(chunk.end, sequences_.num_prompt_tokens[chunk.seat] - 1);
    for (int position = chunk.start; position < end; ++position) {
        batch_.prompt_rows[counts.num_prompt_rows] = first_row + position - chunk.start;
        batch_.prompt_targets[counts.num_prompt_rows] = tokens[position + 1];
        batch_.prompt_num_logprobs[counts.num_prompt_rows++] = sequences_.sampling[chunk.seat].num_prompt_logprobs;
    }
}

void Flattener::append_sampled(const int32_t* token_ids, const uint8_t* status, int num_samples) const {
    bool goes_on = true;
    for (int i = 0; i < num_samples; ++i) {
        const int seat = batch_.sample_seats[i], index = batch_.sample_drafts[i];
        const bool is_ok = status[i] == static_cast<uint8_t>(SampleStatus::ok);
        const bool is_last = index == sequences_.num_drafts[seat];
        goes_on = index == 0 || (goes_on && is_ok);
        if (goes_on) {
            int32_t& num_tokens = sequences_.num_tokens[seat];
            require(static_cast<size_t>(num_tokens) < sequences_.stride, "a seat has no room for another token");
            int32_t& token = sequences_.tokens[seat * sequences_.stride + num_tokens++];
            goes_on = is_ok && !is_last && token == token_ids[i];
            token = token_ids[i];
        }
        if (is_last) sequences_.num_drafts[seat] = 0;
    }
}

}  // namespace hotseat
