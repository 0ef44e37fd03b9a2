#include "decoder/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hotseat {

namespace {

constexpr float kGreedyBelow = 1e-5f;
constexpr int kBlock = 256;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class Visit>
void for_each_entry(const RaggedArrays& lists, int seat, Visit&& visit) {
    for (int i = lists.offsets[seat]; i < lists.offsets[seat + 1]; ++i) visit(i);
}

void penalize(const SeatArrays& s, SampledRow row, float* x, std::vector<int32_t>& counts) {
    const int seat = row.seat;
    const int32_t* tokens = s.tokens + seat * s.tokens_stride;
    const int num_tokens = s.num_tokens[seat] + row.num_drafts, num_prompt = s.num_prompt_tokens[seat];
    const SeatSampling& sampling = s.sampling[seat];
    const float repetition = sampling.repetition_penalty;
    // counts: -1 for a token whose repetition penalty is done, so that it is
    // applied once.
    if (repetition != 1.0f) {
        for (int i = 0; i < num_tokens; ++i) {
            if (counts[tokens[i]] != 0) continue;
            counts[tokens[i]] = -1;
            float& value = x[tokens[i]];
            value = value > 0.0f ? value / repetition : value * repetition;
        }
        for (int i = 0; i < num_tokens; ++i) counts[tokens[i]] = 0;
    }
    for (int i = num_prompt; i < num_tokens; ++i) ++counts[tokens[i]];
    const float frequency = sampling.frequency_penalty, presence = sampling.presence_penalty;
    for (int i = num_prompt; i < num_tokens; ++i) {
        int32_t& count = counts[tokens[i]];
        if (count == 0) continue;
        float& value = x[tokens[i]];
        if (frequency != 0.0f) value -= frequency * static_cast<float>(count);
        if (presence != 0.0f) value -= presence;
        count = 0;
    }
}

// Mask the tokens whose bit is not set in the mask of the row.
void apply_mask(const SeatArrays& s, SampledRow row, float* x, int vocab_size) {
    const int index = row.num_drafts == 0 ? row.seat : s.num_seats + s.first_draft[row.seat] + row.num_drafts - 1;
    const uint32_t* words = s.token_masks + static_cast<size_t>(index) * s.mask_words;
    for (int begin = 0; begin < vocab_size; begin += 32) {
        const uint32_t word = words[begin / 32];
        const int end = std::min(begin + 32, vocab_size);
        if (word == 0) {
            std::fill(x + begin, x + end, kMinusInfinity);
        } else if (word != ~0u) {
            for (int i = begin; i < end; ++i)
                if (!(word >> (i - begin) & 1u)) x[i] = kMinusInfinity;
        }
    }
}

// Mask the banned ids. Under a grammar they stay where they are all that is left:
// it is complete, and nothing but an end may follow.
void ban(const KernelTable& kernels, const SamplerInputs& in, int seat, float* x, int vocab_size,
         std::vector<float>& saved) {
    saved.clear();
    for_each_entry(in.banned_ids, seat, [&](int i) {
        saved.push_back(x[in.banned_ids.ids[i]]);
        x[in.banned_ids.ids[i]] = kMinusInfinity;
    });
    if (!in.seats.has_mask[seat] || kernels.maximum(x, vocab_size) != kMinusInfinity) return;
    const int first = in.banned_ids.offsets[seat];
    // Backwards: of an id that is listed twice, the first entry has its value.
    for (int i = in.banned_ids.offsets[seat + 1] - 1; i >= first; --i) x[in.banned_ids.ids[i]] = saved[i - first];
}

// Copy and change the logits where the seat wants it; returns the row to sample
// from.
const float* adjust(const KernelTable& kernels, const SamplerInputs& in, SampledRow row, const float* logits,
                    int vocab_size, SamplerScratch& scratch) {
    const int seat = row.seat;
    const bool is_limited = in.allowed_ids.offsets[seat] != in.allowed_ids.offsets[seat + 1];
    const bool is_biased = in.logit_bias.offsets[seat] != in.logit_bias.offsets[seat + 1];
    const int num_sampled = in.seats.num_tokens[seat] + row.num_drafts - in.seats.num_prompt_tokens[seat];
    const bool is_banned = in.banned_ids.offsets[seat] != in.banned_ids.offsets[seat + 1] &&
                           num_sampled < in.seats.sampling[seat].min_tokens;
    const bool has_mask = in.seats.has_mask[seat];
    if (!is_limited && !has_mask && !is_biased && !is_banned && !in.seats.sampling[seat].has_penalties) return logits;
    float* x = scratch.adjusted.data();
    if (is_limited) {
        std::fill_n(x, vocab_size, kMinusInfinity);
        for_each_entry(in.allowed_ids, seat, [&](int i) { x[in.allowed_ids.ids[i]] = logits[in.allowed_ids.ids[i]]; });
    } else {
        std::copy_n(logits, vocab_size, x);
    }
    if (has_mask) apply_mask(in.seats, row, x, vocab_size);
    for_each_entry(in.logit_bias, seat, [&](int i) { x[in.logit_bias.ids[i]] += in.logit_bias.values[i]; });
    if (is_banned) ban(kernels, in, seat, x, vocab_size, scratch.saved);
    if (in.seats.sampling[seat].has_penalties) penalize(in.seats, row, x, scratch.counts);
    return x;
}

// Ids whose w is at least `floor`, in any order; of the most probable ones at
// least `enough` when there are so many. A falling threshold on w collects
// them.
template <class Enough>
void collect_head(const float* w, float floor, int vocab_size, std::vector<int32_t>& ids, Enough&& enough) {
    for (float threshold = 1e-3f;; threshold *= 1e-3f) {
        const float limit = threshold < 1e-12f ? floor : std::max(floor, threshold);
        ids.clear();
        for (int i = 0; i < vocab_size; ++i)
            if (w[i] >= limit) ids.push_back(i);
        if (limit == floor || enough(ids)) break;
    }
}

int64_t weight_of(const std::vector<int32_t>& ids, const std::vector<int32_t>& weights) {
    int64_t sum = 0;
    for (int32_t id : ids) sum += weights[id];
    return sum;
}

// Leave in scratch.head the candidates that min_p, top_k and top_p keep.
void filter(const SeatSampling& sampling, const float* x, float peak, int vocab_size, int64_t total,
            SamplerScratch& scratch) {
    const float* w = scratch.relative.data();
    const int top_k = sampling.top_k;
    const float top_p = sampling.top_p, min_p = sampling.min_p;
    // With neither top_k nor min_p, top_p is a share of everything, whose weight
    // is known already.
    const bool is_share_of_all = top_k <= 0 && min_p <= 0.0f;
    const double share = static_cast<double>(top_p) * static_cast<double>(total);
    collect_head(w, min_p, vocab_size, scratch.ids, [&](const std::vector<int32_t>& head) {
        if (top_k > 0) return head.size() >= static_cast<size_t>(top_k);
        if (is_share_of_all && top_p < 1.0f) return static_cast<double>(weight_of(head, scratch.weights)) >= share;
        return false;
    });
    Head& head = scratch.head;
    head.assign(scratch.ids, x, peak, scratch.weights.data());
    if (top_k > 0) head.keep(static_cast<size_t>(top_k));
    if (top_p >= 1.0f) return;
    head.keep_weight(is_share_of_all ? share : static_cast<double>(top_p) * static_cast<double>(head.weight()));
}

int32_t draw_from_all(double target, int vocab_size, const SamplerScratch& scratch) {
    int64_t sum = 0;
    int block = 0;
    const int num_blocks = (vocab_size + kBlock - 1) / kBlock;
    while (block + 1 < num_blocks && static_cast<double>(sum + scratch.block_sums[block]) <= target)
        sum += scratch.block_sums[block++];
    int i = block * kBlock;
    for (; i + 1 < vocab_size; ++i) {
        sum += scratch.weights[i];
        if (static_cast<double>(sum) > target) break;
    }
    return i;
}

}  // namespace

SamplerScratch::SamplerScratch(int vocab_size)
    : adjusted(vocab_size + 16),
      relative(vocab_size + 16),
      weights(vocab_size + 16),
      block_sums(vocab_size / kBlock + 2),
      counts(vocab_size) {
    ids.reserve(vocab_size);
}

double uniform_draw(uint64_t seed, uint32_t position) {
    uint32_t c[4] = {position, 0, 0, 0};
    uint32_t k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
        const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
                                  static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
        std::copy_n(next, 4, c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return (c[0] >> 8) * 0x1p-24;
}

SampleStatus sample(const KernelTable& kernels, const SamplerInputs& in, SampledRow row, const float* logits,
                    int vocab_size, SamplerScratch& scratch, int32_t* token_id) {
    const int seat = row.seat;
    *token_id = 0;
    if (!kernels.all_finite(logits, vocab_size)) return SampleStatus::not_finite;
    const float* x = adjust(kernels, in, row, logits, vocab_size, scratch);
    float peak = kernels.maximum(x, vocab_size);
    if (peak == kMinusInfinity) return SampleStatus::no_candidate;
    const SeatSampling& sampling = in.seats.sampling[seat];
    const float temperature = sampling.temperature;
    if (temperature < kGreedyBelow) {
        while (x[*token_id] != peak) ++*token_id;
        return SampleStatus::ok;
    }
    if (temperature != 1.0f) {
        if (x != scratch.adjusted.data()) std::copy_n(x, vocab_size, scratch.adjusted.data());
        x = scratch.adjusted.data();
        kernels.divide_all(scratch.adjusted.data(), vocab_size, temperature);
        peak = kernels.maximum(x, vocab_size);
    }
    kernels.exp_weights(x, vocab_size, peak, scratch.relative.data(), scratch.weights.data(),
                        scratch.block_sums.data());
    int64_t total = 0;
    for (int block = 0; block * kBlock < vocab_size; ++block) total += scratch.block_sums[block];
    const double u = uniform_draw(sampling.seed, static_cast<uint32_t>(in.seats.num_tokens[seat] + row.num_drafts));
    const bool is_filtered =
        (sampling.top_k > 0 && sampling.top_k < vocab_size) || sampling.top_p < 1.0f || sampling.min_p > 0.0f;
    if (!is_filtered) {
        *token_id = draw_from_all(u * static_cast<double>(total), vocab_size, scratch);
        return SampleStatus::ok;
    }
    filter(sampling, x, peak, vocab_size, total, scratch);
    *token_id = scratch.head.draw(u * static_cast<double>(scratch.head.weight()));
    return SampleStatus::ok;
}

void write_logprobs(const KernelTable& kernels, const float* logits, int vocab_size, int32_t token_id, int num_top,
                    SamplerScratch& scratch, const LogprobArrays& out, int row) {
    if (!kernels.all_finite(logits, vocab_size)) {
        out.logprob[row] = std::numeric_limits<float>::quiet_NaN();
        return;
    }
    const float peak = kernels.maximum(logits, vocab_size);
    const double log_sum = std::log(kernels.sum_of_exponentials(logits, vocab_size, peak));
    const auto logprob = [&](int32_t id) {
        return static_cast<float>(static_cast<double>(logits[id] - peak) - log_sum);
    };
    out.logprob[row] = logprob(token_id);
    out.rank[row] = 1 + static_cast<int32_t>(
                            std::count_if(logits, logits + vocab_size, [&](float x) { return x > logits[token_id]; }));
    if (num_top <= 0) return;
    num_top = std::min(num_top, vocab_size);
    std::vector<int32_t>& ids = scratch.ids;
    ids.resize(vocab_size);
    for (int i = 0; i < vocab_size; ++i) ids[i] = i;
    std::partial_sort(ids.begin(), ids.begin() + num_top, ids.end(), [logits](int32_t a, int32_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
    for (int i = 0; i < num_top; ++i) {
        out.top_ids[row * out.top_stride + i] = ids[i];
        out.top_logprobs[row * out.top_stride + i] = logprob(ids[i]);
    }
}

}  // namespace hotseat
