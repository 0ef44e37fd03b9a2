// Chunks into flat arrays and samples back into sequences. The arrays of these
// tests are exactly as large as promised, so that the address sanitizer sees
// who writes beside them.
#include "decoder/flatten.h"

#include <stdexcept>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr int kSeats = 3, kMaxTokens = 8, kMaxSamples = 8, kStride = 7;

using Ints = std::vector<int32_t>;

// Seats 0, 1 and 2 know 6, 2 and 4 tokens: 10, 11 ...; 20, 21; 30, 31 ....
struct World {
    World() {
        for (int seat = 0; seat < kSeats; ++seat)
            for (int i = 0; i < kStride; ++i) tokens[seat * kStride + i] = 10 * (seat + 1) + i;
    }
    BatchCounts flatten(const std::vector<Chunk>& chunks) { return flattener().flatten(chunks); }
    Flattener flattener() {
        return {{kSeats, tokens.data(), kStride, num_tokens.data(), num_prompt_tokens.data(), capacity.data(),
                 sampling.data(), num_drafts.data()},
                {token_ids.data(), positions.data(), query_start.data(), seats.data(), context_lens.data(),
                 writes_kv.data(), sample_rows.data(), sample_seats.data(), sample_drafts.data(), prompt_rows.data(),
                 prompt_targets.data(), prompt_num_logprobs.data()},
                kMaxTokens,
                kMaxSamples};
    }
    std::string refusal(const std::vector<Chunk>& chunks) {
        try {
            flatten(chunks);
        } catch (const std::invalid_argument& error) {
            return error.what();
        }
        return "";
    }

    Ints tokens = Ints(kSeats * kStride), num_tokens = {6, 2, 4}, num_prompt_tokens = {6, 2, 3}, capacity = {6, 16, 16};
    std::vector<SeatSampling> sampling = std::vector<SeatSampling>(kSeats);
    Ints token_ids = Ints(kMaxTokens), positions = Ints(kMaxTokens), query_start = Ints(kSeats + 1);
    Ints num_drafts = {0, 0, 0};
    Ints seats = Ints(kSeats), context_lens = Ints(kSeats);
    Ints sample_rows = Ints(kMaxSamples), sample_seats = Ints(kMaxSamples), sample_drafts = Ints(kMaxSamples);
    Ints prompt_rows = Ints(kMaxTokens), prompt_targets = Ints(kMaxTokens), prompt_num_logprobs = Ints(kMaxTokens);
    std::vector<uint8_t> writes_kv = std::vector<uint8_t>(kSeats);
};

const std::vector<uint8_t> good(6);  // a status for each sample

Ints first(const Ints& values, int count) { return {values.begin(), values.begin() + count}; }

}  // namespace

TEST_CASE("flattener lays decodes and prefills side by side") {
    World world;
    const BatchCounts counts = world.flatten({{2, 3, 4, true, true}, {0, 0, 5, false, true}, {1, 1, 2, true, false}});
    REQUIRE(
        (counts.num_tokens == 7 && counts.num_chunks == 3 && counts.num_samples == 2 && counts.num_prompt_rows == 0));
    REQUIRE(first(world.token_ids, 7) == Ints({33, 10, 11, 12, 13, 14, 21}));
    REQUIRE(first(world.positions, 7) == Ints({3, 0, 1, 2, 3, 4, 1}));
    REQUIRE(world.query_start == Ints({0, 1, 6, 7}));
    REQUIRE(world.seats == Ints({2, 0, 1}));
    REQUIRE(world.context_lens == Ints({4, 5, 2}));
    REQUIRE(world.writes_kv == std::vector<uint8_t>({1, 1, 0}));
    REQUIRE(first(world.sample_rows, 2) == Ints({0, 6}));
    REQUIRE(first(world.sample_seats, 2) == Ints({2, 1}));
}

TEST_CASE("flattener lists rows whose next token is in the prompt") {
    World world;
    world.sampling[0].num_prompt_logprobs = 4, world.sampling[2].num_prompt_logprobs = 0;
    const BatchCounts counts = world.flatten({{1, 0, 2, true, true}, {2, 0, 4, true, true}, {0, 4, 6, true, true}});
    REQUIRE(counts.num_prompt_rows == 3);
    REQUIRE(first(world.prompt_rows, 3) == Ints({2, 3, 6}));
    REQUIRE(first(world.prompt_targets, 3) == Ints({31, 32, 15}));
    REQUIRE(first(world.prompt_num_logprobs, 3) == Ints({0, 0, 4}));
}

TEST_CASE("flattener appends samples to their sequences") {
    World world;
    world.flatten({{2, 3, 4, true, true}, {1, 0, 1, false, true}, {0, 5, 6, true, true}});
    const Ints sampled = {77, 88};
    world.flattener().append_sampled(sampled.data(), good.data(), 2);
    REQUIRE(world.num_tokens == Ints({7, 2, 5}));
    REQUIRE((world.tokens[2 * kStride + 4] == 77 && world.tokens[6] == 88));
    world.capacity[0] = 16;
    REQUIRE(world.flatten({{0, 6, 7, true, true}}).num_samples == 1);
    REQUIRE(world.token_ids[0] == 88);
}

TEST_CASE("flattener samples the rows of all drafts and keeps the true ones") {
    World world;
    world.num_drafts = {0, 3, 1};
    world.flatten({{1, 1, 5, true, true}, {2, 3, 5, true, true}});
    REQUIRE(first(world.token_ids, 6) == Ints({21, 22, 23, 24, 33, 34}));
    REQUIRE(first(world.sample_rows, 6) == Ints({0, 1, 2, 3, 4, 5}));
    REQUIRE(first(world.sample_seats, 6) == Ints({1, 1, 1, 1, 2, 2}));
    REQUIRE(first(world.sample_drafts, 6) == Ints({0, 1, 2, 3, 0, 1}));
    const Ints sampled = {22, 77, 24, 25, 34, 35};  // the second draft of seat 1 is wrong, the one of seat 2 is true
    world.flattener().append_sampled(sampled.data(), good.data(), 6);
    REQUIRE(world.num_tokens == Ints({6, 4, 6}));
    REQUIRE(world.num_drafts == Ints({0, 0, 0}));
    REQUIRE((world.tokens[kStride + 2] == 22 && world.tokens[kStride + 3] == 77));
    REQUIRE((world.tokens[2 * kStride + 4] == 34 && world.tokens[2 * kStride + 5] == 35));
}

TEST_CASE("flattener drops a row that failed behind drafts") {
    World world;
    world.num_drafts = {0, 2, 0};
    world.flatten({{1, 1, 4, true, true}});
    const Ints sampled = {22, 0, 24};
    const std::vector<uint8_t> status = {0, 1, 0};
    world.flattener().append_sampled(sampled.data(), status.data(), 3);
    REQUIRE((world.num_tokens[1] == 3 && world.tokens[kStride + 2] == 22));
}

TEST_CASE("flattener never writes behind a sequence") {
    World world;
    world.capacity[0] = 16;
    world.flatten({{0, 0, 1, true, true}, {0, 1, 2, true, true}, {0, 2, 3, true, true}});
    const Ints sampled = {1, 2, 3};
    bool was_refused = false;
    try {
        world.flattener().append_sampled(sampled.data(), good.data(), 3);
    } catch (const std::invalid_argument&) {
        was_refused = true;
    }
    REQUIRE((was_refused && world.num_tokens[0] == kStride && world.tokens[kStride] == 20));
}

TEST_CASE("flattener refuses what is not within its seat or its step") {
    World world;
    for (int seat : {-1, kSeats, 1 << 30}) REQUIRE(world.refusal({{seat, 0, 1, true, true}}) == "a chunk has no seat");
    REQUIRE(world.refusal({{1, -1, 1, true, true}}) == "a chunk has no tokens");
    REQUIRE(world.refusal({{1, 1, 1, true, true}}) == "a chunk has no tokens");
    REQUIRE(world.refusal({{1, 2, 1, true, true}}) == "a chunk has no tokens");
    REQUIRE(world.refusal({{1, 0, 3, true, true}}) == "a chunk exceeds its seat");
    world.capacity[2] = 3;  // of four tokens
    REQUIRE(world.refusal({{2, 0, 4, true, true}}) == "a chunk exceeds its seat");
    REQUIRE(world.refusal({{0, 0, 6, true, true}, {2, 0, 3, false, true}}) ==
            "a batch has more tokens than a step may compute");
    REQUIRE(world.refusal(std::vector<Chunk>(4, {0, 0, 1, false, true})) ==
            "a batch has more chunks than there are seats");
    REQUIRE(world.flatten({{0, 0, 6, true, true}, {2, 0, 2, false, true}}).num_tokens == kMaxTokens);
}

}  // namespace hotseat::tests
