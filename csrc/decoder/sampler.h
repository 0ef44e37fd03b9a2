// From one row of logits to a token and its log-probabilities. The order of
// operations is that of sampling_reference.py, which is the definition.
#pragma once
#include <utility>
#include <vector>

#include "decoder/head.h"
#include "decoder/step.h"
#include "kernels/table.h"

namespace hotseat {

struct SamplerInputs {
    SeatArrays seats;
    RaggedArrays logit_bias;
    RaggedArrays allowed_ids;
    RaggedArrays banned_ids;
};

// Scratch of one thread; grows to the size of the vocabulary once.
struct SamplerScratch {
    explicit SamplerScratch(int vocab_size);
    std::vector<float> adjusted;  // logits with masks, biases and penalties
    std::vector<float> relative;  // e^(x - max)
    std::vector<int32_t> weights;
    std::vector<int64_t> block_sums;
    std::vector<int32_t> counts;  // occurrences of each token in the output; zero between rows
    std::vector<int32_t> ids;
    std::vector<float> saved;  // logits of the banned ids
    Head head;                 // of `ids`
};

// The token after the first `num_drafts` drafts of a seat.
struct SampledRow {
    int seat;
    int num_drafts = 0;
};

// Row `row` samples from logits[vocab_size].
SampleStatus sample(const KernelTable& kernels, const SamplerInputs& inputs, SampledRow row, const float* logits,
                    int vocab_size, SamplerScratch& scratch, int32_t* token_id);

// Write row `row` of `out`: log-probability and rank of `token_id`, and the
// `num_top` most probable.
void write_logprobs(const KernelTable& kernels, const float* logits, int vocab_size, int32_t token_id, int num_top,
                    SamplerScratch& scratch, const LogprobArrays& out, int row);

// First word of Philox4x32-10 at counter (position, 0, 0, 0), as a multiple of
// 2^-24 in [0, 1).
double uniform_draw(uint64_t seed, uint32_t position);

}  // namespace hotseat
