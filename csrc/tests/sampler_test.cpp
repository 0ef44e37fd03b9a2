// Edge cases of the sampler; the comparison with its definition over random
// parameters is in tests/runner/test_native_sampling.py.
#include "decoder/sampler.h"

#include <algorithm>
#include <limits>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One seat with neutral parameters and all arrays that describe it.
struct Seat {
    explicit Seat(std::vector<float> logits)
        : logits(std::move(logits)), scratch(static_cast<int>(this->logits.size())) {}

    SamplerInputs inputs() {
        num_tokens = static_cast<int32_t>(tokens.size());
        sampling.has_penalties = sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f ||
                                 sampling.repetition_penalty != 1.0f;
        bias_offsets[1] = static_cast<int32_t>(bias_ids.size());
        allowed_offsets[1] = static_cast<int32_t>(allowed_ids.size());
        banned_offsets[1] = static_cast<int32_t>(banned_ids.size());
        return {.seats = {.tokens = tokens.data(),
                          .tokens_stride = tokens.size(),
                          .num_tokens = &num_tokens,
                          .num_prompt_tokens = &num_prompt_tokens,
                          .block_tables = nullptr,
                          .blocks_stride = 0,
                          .sampling = &sampling,
                          .token_masks = mask.data(),
                          .mask_words = mask.size(),
                          .has_mask = &has_mask},
                .logit_bias = {bias_offsets, bias_ids.data(), bias_values.data()},
                .allowed_ids = {allowed_offsets, allowed_ids.data(), nullptr},
                .banned_ids = {banned_offsets, banned_ids.data(), nullptr}};
    }
    // The token, or minus the status.
    int draw(const KernelTable& table = scalar_table()) {
        int32_t token_id = -99;
        const SamplerInputs in = inputs();
        const SampleStatus status =
            sample(table, in, {0}, logits.data(), static_cast<int>(logits.size()), scratch, &token_id);
        return status == SampleStatus::ok ? token_id : -static_cast<int>(status);
    }
    // Which tokens come up over many seeds.
    std::vector<int> drawn(int num_seeds = 300) {
        std::vector<int> ids;
        for (int i = 0; i < num_seeds; ++i) {
            sampling.seed = static_cast<uint64_t>(i);
            ids.push_back(draw());
        }
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        return ids;
    }

    std::vector<float> logits;
    SamplerScratch scratch;
    std::vector<int32_t> tokens = {0};
    int32_t num_tokens = 1, num_prompt_tokens = 1;
    SeatSampling sampling{.temperature = 1.0f};
    uint8_t has_mask = 0;
    std::vector<uint32_t> mask;
    int32_t bias_offsets[2] = {}, allowed_offsets[2] = {}, banned_offsets[2] = {};
    std::vector<int32_t> bias_ids, allowed_ids, banned_ids;
    std::vector<float> bias_values;
};

using Ids = std::vector<int>;

}  // namespace

TEST_CASE("draws are philox") {
    // Random123's known answers for philox4x32-10, first word.
    REQUIRE(uniform_draw(0, 0) == (0x6627e8d5u >> 8) * 0x1p-24);
    double mean = 0.0;
    for (uint32_t position = 0; position < 4000; ++position) mean += uniform_draw(77, position) / 4000.0;
    REQUIRE(close(mean, 0.5, 0.02));
    REQUIRE((uniform_draw(1, 5) != uniform_draw(1ull << 32, 5) && uniform_draw(1, 5) != uniform_draw(1, 6)));
}

TEST_CASE("greedy takes the lowest id among equals") {
    for (int n : {1, 2, 17, 255, 256, 257, 1000}) {
        Seat seat(std::vector<float>(n, 2.5f));
        seat.sampling.temperature = 0.0f;
        for (const KernelTable* table : tables()) REQUIRE(seat.draw(*table) == 0);
        seat.logits[n - 1] = 2.6f;
        for (const KernelTable* table : tables()) REQUIRE(seat.draw(*table) == n - 1);
    }
}

TEST_CASE("filters keep what they should at their borders") {
    Seat seat({0.0f, 0.0f, 0.0f, 0.0f, -50.0f});
    seat.sampling.top_k = 2;
    REQUIRE(seat.drawn() == (Ids{0, 1}));
    seat.sampling.top_k = 0, seat.sampling.top_p = 0.5f;  // reached exactly by the second
    REQUIRE(seat.drawn() == (Ids{0, 1}));
    seat.sampling.top_p = 1e-9f;
    REQUIRE(seat.drawn() == (Ids{0}));
    seat.sampling.top_p = 1.0f, seat.sampling.min_p = 1.0f;
    REQUIRE(seat.drawn() == (Ids{0, 1, 2, 3}));
    seat.sampling.min_p = 0.0f, seat.sampling.top_k = 99;  // no filter: e^-50 is too improbable all the same
    REQUIRE(seat.drawn() == (Ids{0, 1, 2, 3}));
    seat.sampling.top_p = 0.99999f;
    REQUIRE(seat.drawn() == (Ids{0, 1, 2, 3}));
    seat.sampling.temperature = 1e6f, seat.sampling.top_p = 1.0f, seat.sampling.top_k = 0;
    REQUIRE(seat.drawn() == (Ids{0, 1, 2, 3, 4}));
}

TEST_CASE("filters find candidates far below the first") {
    // collect_head looks at thresholds from 1e-3 down: candidates at each depth.
    std::vector<float> logits(600, -100.0f);
    for (int i = 0; i < 8; ++i) logits[i * 70 + 5] = -4.0f * static_cast<float>(i);  // e^-28 is 7e-13
    Seat seat(logits);
    seat.sampling.temperature = 50.0f;
    for (int k = 1; k <= 8; ++k) {
        Ids expected;
        for (int i = 0; i < k; ++i) expected.push_back(i * 70 + 5);
        seat.sampling.top_k = k;
        REQUIRE_MESSAGE(seat.drawn(400) == expected, text("top_k %d", k));
    }
    seat.sampling.temperature = 1.0f;
    for (int k : {1, 5, 8, 300, 599}) {
        seat.sampling.top_k = k;
        REQUIRE_MESSAGE(seat.drawn(50).front() == 5, text("top_k %d", k));
    }
}

TEST_CASE("banned until min tokens and no candidate") {
    Seat seat({5.0f, 4.0f, 3.0f});
    seat.sampling.temperature = 0.0f;
    seat.banned_ids = {0, 1};
    seat.sampling.min_tokens = 2;
    REQUIRE(seat.draw() == 2);
    seat.tokens = {0, 2, 2};
    REQUIRE(seat.draw() == 0);
    seat.tokens = {0};
    seat.allowed_ids = {0, 1};
    REQUIRE(seat.draw() == -static_cast<int>(SampleStatus::no_candidate));
    seat.sampling.temperature = 1.0f;
    REQUIRE(seat.draw() == -static_cast<int>(SampleStatus::no_candidate));
}

TEST_CASE("a mask leaves the tokens of its bits") {
    Seat seat(std::vector<float>(70, 1.0f));
    seat.has_mask = 1;
    seat.mask = {0u, 1u << 31 | 1u << 3, ~0u};
    REQUIRE(seat.drawn() == (Ids{35, 63, 64, 65, 66, 67, 68, 69}));
    seat.mask = {0u, 0u, ~0u << 6};  // nothing but bits beyond the vocabulary
    REQUIRE(seat.draw() == -static_cast<int>(SampleStatus::no_candidate));
    seat.mask = {~0u, 0u, 0u};
    seat.allowed_ids = {31, 32};
    REQUIRE(seat.drawn() == (Ids{31}));
}

TEST_CASE("banned ids that a mask leaves alone may be sampled") {
    Seat seat({5.0f, 4.0f, 3.0f});
    seat.sampling.temperature = 0.0f;
    seat.banned_ids = {1, 1};
    seat.sampling.min_tokens = 5;
    seat.has_mask = 1;
    seat.mask = {6u};
    REQUIRE(seat.draw() == 2);
    seat.mask = {2u};
    REQUIRE(seat.draw() == 1);
}

TEST_CASE("not finite is a status and leaves the scratch usable") {
    for (float broken : {kInfinity, -kInfinity, std::nanf("")}) {
        Seat seat(std::vector<float>(300, 1.0f));
        seat.sampling.repetition_penalty = 1.5f;
        seat.logits[299] = broken;
        REQUIRE(seat.draw() == -static_cast<int>(SampleStatus::not_finite));
        seat.logits[299] = 9.0f, seat.sampling.temperature = 0.0f;
        REQUIRE(seat.draw() == 299);
    }
}

TEST_CASE("penalties count the output and leave no trace") {
    Seat seat({1.0f, 1.2f, -1.0f, 0.0f});
    seat.sampling.temperature = 0.0f;
    seat.tokens = {1, 1, 0};  // prompt, output, output
    seat.sampling.frequency_penalty = 0.1f;
    REQUIRE(seat.draw() == 1);  // 1.2 - 0.1 against 1.0 - 0.1
    seat.tokens = {1, 1, 1, 1};
    REQUIRE(seat.draw() == 0);  // 1.2 - 0.3 against 1.0
    seat.tokens = {1};
    REQUIRE(seat.draw() == 1);  // the prompt does not count
    seat.sampling.frequency_penalty = 0.0f, seat.sampling.repetition_penalty = 1.3f;
    REQUIRE(seat.draw() == 0);  // but for repetition
    seat.sampling.repetition_penalty = 1.0f;
    REQUIRE(seat.draw() == 1);
    for (int32_t count : seat.scratch.counts) REQUIRE(count == 0);
}

TEST_CASE("bias acts after the mask and twice when listed twice") {
    Seat seat({1.0f, 1.2f, -1.0f, 0.0f});
    seat.sampling.temperature = 0.0f;
    seat.allowed_ids = {2, 3};
    seat.bias_ids = {1, 2, 2};
    seat.bias_values = {100.0f, 0.6f, 0.6f};
    REQUIRE(seat.draw() == 2);
    seat.allowed_ids = {};
    REQUIRE(seat.draw() == 1);
}

TEST_CASE("all probability on one token draws it wherever it is") {
    for (int n : {1, 16, 255, 256, 257, 512, 700})
        for (int at : {0, n / 2, n - 1}) {
            Seat seat(std::vector<float>(n, -60.0f));
            seat.logits[at] = 60.0f;
            REQUIRE_MESSAGE(seat.drawn(20) == (Ids{at}), text("%d of %d", at, n));
        }
}

TEST_CASE("logprobs rank and top follow their definitions") {
    Random random(41);
    for (int n : {1, 2, 17, 300}) {
        std::vector<float> logits(n);
        for (float& logit : logits) logit = static_cast<float>(random.below(9));  // many equal ones
        double sum = 0.0;
        for (float logit : logits) sum += std::exp(static_cast<double>(logit));
        for (const KernelTable* table : tables()) {
            SamplerScratch scratch(n);
            Guarded<float> logprob(2), top_logprobs(40, 5.0f);
            Guarded<int32_t> rank(2), top_ids(40, -1);
            const LogprobArrays out{logprob.data(), rank.data(), top_ids.data(), top_logprobs.data(), 20};
            const int token = n / 2, num_top = std::min(n, 20);
            write_logprobs(*table, logits.data(), n, token, 20, scratch, out, 1);
            REQUIRE(close(logprob[1], logits[token] - std::log(sum), 1e-5));
            REQUIRE(rank[1] ==
                    1 + std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logits[token]; }));
            for (int i = 0; i < num_top; ++i) {
                const int id = top_ids[20 + i], before = i > 0 ? top_ids[20 + i - 1] : id;
                REQUIRE(close(top_logprobs[20 + i], logits[id] - std::log(sum), 1e-5));
                REQUIRE((i == 0 || logits[before] > logits[id] || (logits[before] == logits[id] && before < id)));
            }
            REQUIRE(logits[top_ids[20]] == *std::max_element(logits.begin(), logits.end()));
            for (int i = 0; i < 20; ++i) REQUIRE(top_ids[i] == -1);  // the row before
            logprob.check(), rank.check(), top_ids.check(), top_logprobs.check();
        }
    }
}

TEST_CASE("logprobs of a broken row are nan") {
    SamplerScratch scratch(3);
    const float logits[3] = {1.0f, kInfinity, 2.0f};
    float logprob = 0.0f, top_logprobs[3];
    int32_t rank, top_ids[3];
    write_logprobs(scalar_table(), logits, 3, 0, 3, scratch, {&logprob, &rank, top_ids, top_logprobs, 3}, 0);
    REQUIRE(std::isnan(logprob));
}

}  // namespace hotseat::tests
