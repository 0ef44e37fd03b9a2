// Between seats and steps: the chunks of a batch become one flat batch, and
// what was sampled becomes the end of its sequence. The definition of both is
// SeatTable in runner/seats.py, which also says what the arrays are.
#pragma once
#include <vector>

#include "decoder/step.h"

namespace hotseat {

// Tokens [start, end) of the sequence of a seat.
struct Chunk {
    int seat;
    int start;
    int end;
    bool samples;
    bool writes_kv;
};

// The sequences of all seats, in arrays that the caller owns and that never
// move. A token is appended only by `append_sampled`.
struct Sequences {
    int num_seats;
    int32_t* tokens;  // [num_seats][stride]
    size_t stride;
    int32_t* num_tokens;
    const int32_t* num_prompt_tokens;
    const int32_t* capacity;  // tokens that the blocks of a seat hold
    const SeatSampling* sampling;
    int32_t* num_drafts;  // behind the tokens of a seat: verified by the step, and gone after it
};

class Flattener {
public:
    // `batch` has room for a chunk of each seat and for `max_num_tokens` rows.
    Flattener(const Sequences& sequences, const BatchArrays& batch, int max_num_tokens, int max_num_samples)
        : sequences_(sequences), batch_(batch), max_num_tokens_(max_num_tokens), max_num_samples_(max_num_samples) {}

    // Fill the arrays of the batch. Throws std::invalid_argument for a chunk
    // that is not within its sequence, or when there are too many.
    BatchCounts flatten(const std::vector<Chunk>& chunks) const;
    // Append token_ids[i] to the sequence of sample i of the batch, unless it is
    // behind a draft that was wrong, or failed behind one.
    void append_sampled(const int32_t* token_ids, const uint8_t* status, int num_samples) const;

private:
    void check(const Chunk& chunk) const;
    void add_rows(const Chunk& chunk, BatchCounts& counts) const;
    void add_samples(const Chunk& chunk, BatchCounts& counts) const;
    void add_prompt_rows(const Chunk& chunk, int first_row, BatchCounts& counts) const;

    Sequences sequences_;
    BatchArrays batch_;
    int max_num_tokens_;
    int max_num_samples_;
};

}  // namespace hotseat
