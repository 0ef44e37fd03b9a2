// What goes into a step and what comes out, as plain pointers into arrays that
// the caller owns.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hotseat {

// Sampling parameters of a seat; a field that is off has its neutral value. The same in the same places as
// SEAT_SAMPLING in runner/seats.py, which bindings/sampling.h checks.
struct SeatSampling {
    uint64_t seed = 0;
    float temperature = 0.0f;
    float top_p = 1.0f;
    float min_p = 0.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    float repetition_penalty = 1.0f;
    int32_t top_k = 0;
    int32_t min_tokens = 0;
    int32_t num_logprobs = -1;         // -1: none
    int32_t num_prompt_logprobs = -1;  // -1: none
    uint8_t has_penalties = 0;
};

// Per-seat state, bound once: the arrays never move. `seats` rows each.
struct SeatArrays {
    const int32_t* tokens;  // [seats][tokens_stride]
    size_t tokens_stride;
    const int32_t* num_tokens;  // tokens known, before this step's are appended
    const int32_t* num_prompt_tokens;
    const int32_t* block_tables;  // [tables][seats][blocks_stride]
    size_t blocks_stride;
    const SeatSampling* sampling;
    const uint32_t* token_masks;  // [seats, then drafts][mask_words]; token t is bit t % 32 of word t / 32
    size_t mask_words;
    const uint8_t* has_mask;  // 0: the seat may sample any token
    int num_seats = 0;
    const int32_t* first_draft = nullptr;  // of a seat among all drafts of the step
};

// Lists by seat: entries [offsets[s], offsets[s + 1]).
struct RaggedArrays {
    const int32_t* offsets;
    const int32_t* ids;
    const float* values;  // may be null
};

// One batch, flat, see decoder/flatten.h. Pointers are bound once, counts change
// from step to step.
struct BatchArrays {
    int32_t* token_ids;       // [num_tokens]
    int32_t* positions;       // [num_tokens]
    int32_t* query_start;     // [num_chunks + 1]
    int32_t* seats;           // [num_chunks]
    int32_t* context_lens;    // [num_chunks]
    uint8_t* writes_kv;       // [num_chunks]
    int32_t* sample_rows;     // [num_samples]
    int32_t* sample_seats;    // [num_samples]
    int32_t* sample_drafts;   // [num_samples]; drafts that the row takes for true
    int32_t* prompt_rows;     // [num_prompt_rows]
    int32_t* prompt_targets;  // [num_prompt_rows]
    int32_t* prompt_num_logprobs;
};

struct BatchCounts {
    int num_tokens;
    int num_chunks;
    int num_samples;
    int num_prompt_rows;
};

// Log-probabilities of rows; top arrays are [rows][top_stride].
struct LogprobArrays {
    float* logprob;
    int32_t* rank;
    int32_t* top_ids;
    float* top_logprobs;
    size_t top_stride;
};

enum class SampleStatus : uint8_t { ok, not_finite, no_candidate };

struct ResultArrays {
    int32_t* token_ids;  // [num_samples]
    uint8_t* status;     // [num_samples]
    LogprobArrays sampled;
    LogprobArrays prompt;
};

}  // namespace hotseat
