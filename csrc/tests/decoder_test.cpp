// The whole decoder on a tiny random model: a row's bits depend on its own
// sequence alone. What it computes is compared with the reference in
// tests/runner/test_native.py; here the sanitizers look on.
#include "decoder/decoder.h"

#include <algorithm>
#include <memory>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr int kVocab = 97, kHidden = 36, kIntermediate = 52, kLayers = 2, kHeads = 6, kKvHeads = 2, kHeadDim = 10;
constexpr int kSeats = 4, kMaxTokens = 320, kMaxLength = 320, kBlockSize = 16, kBlocksPerSeat = kMaxLength / kBlockSize;

struct Model {
    explicit Model(uint32_t seed) : random(seed) {}
    StoredMatrix matrix(int rows, int columns) {
        arrays.push_back(std::make_unique<Guarded<float>>(random_floats(random, rows * columns, 0.3f)));
        return {Kind::F32, reinterpret_cast<const uint8_t*>(arrays.back()->data()), columns * sizeof(float), rows};
    }
    std::vector<float> norm() { return std::vector<float>(kHidden, 1.1f); }

    Random random;
    std::vector<std::unique_ptr<Guarded<float>>> arrays;
};

// A decoder, its weights and all arrays that it is bound to.
class World {
public:
    World(WeightMode mode, const KernelTable& table, int num_threads, bool kv_is_fp32)
        : decoder({.vocab_size = kVocab,
                   .hidden_size = kHidden,
                   .intermediate_size = kIntermediate,
                   .num_layers = kLayers,
                   .num_heads = kHeads,
                   .num_kv_heads = kKvHeads,
                   .head_dim = kHeadDim,
                   .norm_eps = 1e-5f,
                   .ropes = {{{1.0f, 0.3f, 0.1f, 0.03f, 0.01f}, 1.0f}},
                   .layer_ropes = std::vector<int>(kLayers, 0),
                   .layer_windows = std::vector<int>(kLayers, 0),
                   .layer_tables = std::vector<int>(kLayers, 0)},
                  {.max_num_seqs = kSeats,
                   .max_num_batched_tokens = kMaxTokens,
                   .max_model_len = kMaxLength,
                   .num_kv_blocks = kSeats * kBlocksPerSeat,
                   .block_size = kBlockSize,
                   .kv_is_fp32 = kv_is_fp32},
                  mode, table, num_threads) {
        load();
        bind();
    }

    // Seat `seat` computes tokens [start, end) in the next step; the last samples.
    void add(int seat, int start, int end, bool wants_prompt_logprobs = false) {
        for (int position = start; position < end; ++position) {
            if (wants_prompt_logprobs && position + 1 < end) {
                prompt_rows[counts.num_prompt_rows] = counts.num_tokens;
                prompt_targets[counts.num_prompt_rows] = tokens[seat * kMaxLength + position + 1];
                prompt_num_logprobs[counts.num_prompt_rows++] = 3;
            }
            token_ids[counts.num_tokens] = tokens[seat * kMaxLength + position];
            positions[counts.num_tokens++] = position;
        }
        seats[counts.num_chunks] = seat;
        context_lens[counts.num_chunks] = end;
        writes_kv[counts.num_chunks] = 1;
        query_start[++counts.num_chunks] = counts.num_tokens;
        num_tokens[seat] = end;
        sample_seats[counts.num_samples] = seat;
        sample_rows[counts.num_samples++] = counts.num_tokens - 1;
    }
    // Logits of the samples, one after the other.
    std::vector<float> step() {
        decoder.step(counts);
        std::vector<float> logits(decoder.logits(), decoder.logits() + counts.num_samples * kVocab);
        for (int i = 0; i < counts.num_samples; ++i) {
            REQUIRE_MESSAGE(status[i] == 0, text("sample %d has status %d", i, status[i]));
            const float* row = logits.data() + i * kVocab;
            if (counts.num_prompt_rows == 0) REQUIRE(sampled_ids[i] == std::max_element(row, row + kVocab) - row);
        }
        counts = {};
        return logits;
    }

    Decoder decoder;
    std::vector<float> prompt_logprob = std::vector<float>(kMaxTokens);
    std::vector<uint8_t> status = std::vector<uint8_t>(kSeats);

private:
    using Ints = std::vector<int32_t>;
    using Floats = std::vector<float>;

    void load() {
        decoder.set_embedding(model.matrix(kVocab, kHidden));
        decoder.set_vector(-1, "output_norm", model.norm());
        decoder.set_output(model.matrix(kVocab, kHidden));
        for (int layer = 0; layer < kLayers; ++layer) {
            decoder.set_vector(layer, "attention_norm", model.norm());
            decoder.set_vector(layer, "mlp_norm", model.norm());
            decoder.set_qkv(layer, model.matrix(kHeads * kHeadDim, kHidden), model.matrix(kKvHeads * kHeadDim, kHidden),
                            model.matrix(kKvHeads * kHeadDim, kHidden));
            decoder.set_attention_output(layer, model.matrix(kHidden, kHeads * kHeadDim));
            decoder.set_gate_up(layer, model.matrix(kIntermediate, kHidden), model.matrix(kIntermediate, kHidden));
            decoder.set_down(layer, model.matrix(kHidden, kIntermediate));
        }
    }
    void bind() {
        for (int32_t& token : tokens) token = model.random.below(kVocab);
        for (size_t i = 0; i < block_tables.size(); ++i)  // seats take turns, backwards
            block_tables[i] =
                static_cast<int32_t>(block_tables.size() - 1 - (i % kBlocksPerSeat * kSeats + i / kBlocksPerSeat));
        const SeatArrays arrays{
            .tokens = tokens.data(),
            .tokens_stride = kMaxLength,
            .num_tokens = num_tokens.data(),
            .num_prompt_tokens = num_tokens.data(),
            .block_tables = block_tables.data(),
            .blocks_stride = kBlocksPerSeat,
            .sampling = sampling.data(),
            .token_masks = nullptr,
            .mask_words = 0,
            .has_mask = no.data(),
        };
        const RaggedArrays empty{none.data(), none.data(), nullptr};
        decoder.bind(
            {arrays, {}, {}, {}},
            {token_ids.data(), positions.data(), query_start.data(), seats.data(), context_lens.data(),
             writes_kv.data(), sample_rows.data(), sample_seats.data(), none.data(), prompt_rows.data(),
             prompt_targets.data(), prompt_num_logprobs.data()},
            {sampled_ids.data(),
             status.data(),
             {logprob.data(), rank.data(), top_ids.data(), top_logprobs.data(), 20},
             {prompt_logprob.data(), prompt_rank.data(), prompt_top_ids.data(), prompt_top_logprobs.data(), 20}});
        decoder.set_sampler_lists(empty, empty, empty);
    }

    Model model{5};
    BatchCounts counts{};
    Ints tokens = Ints(kSeats * kMaxLength), num_tokens = Ints(kSeats), none = Ints(kSeats + 1);
    Ints block_tables = Ints(kSeats * kBlocksPerSeat);
    std::vector<SeatSampling> sampling = std::vector<SeatSampling>(kSeats, SeatSampling{.num_logprobs = 5});
    std::vector<uint8_t> no = std::vector<uint8_t>(kSeats), writes_kv = std::vector<uint8_t>(kSeats);
    Ints token_ids = Ints(kMaxTokens), positions = Ints(kMaxTokens), query_start = Ints(kSeats + 1);
    Ints seats = Ints(kSeats), context_lens = Ints(kSeats), sample_rows = Ints(kSeats), sample_seats = Ints(kSeats);
    Ints prompt_rows = Ints(kMaxTokens), prompt_targets = Ints(kMaxTokens), prompt_num_logprobs = Ints(kMaxTokens);
    Ints sampled_ids = Ints(kSeats), rank = Ints(kSeats), top_ids = Ints(kSeats * 20);
    Floats logprob = Floats(kSeats), top_logprobs = Floats(kSeats * 20);
    Ints prompt_rank = Ints(kMaxTokens), prompt_top_ids = Ints(kMaxTokens * 20);
    Floats prompt_top_logprobs = Floats(kMaxTokens * 20);
};

std::vector<float> row(const std::vector<float>& logits, int index) {
    return {logits.begin() + index * kVocab, logits.begin() + (index + 1) * kVocab};
}

void check_equal(const std::vector<float>& a, const std::vector<float>& b, const char* table, const char* what) {
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) REQUIRE_MESSAGE(same(a[i], b[i]), text("%s, %s: logit %zu", table, what, i));
}

// Seat 0 alone, its 300 tokens in one chunk: crosses the border of a partition.
std::vector<float> alone(WeightMode mode, const KernelTable& table, bool kv_is_fp32) {
    World world(mode, table, 1, kv_is_fp32);
    world.add(0, 0, 300);
    return world.step();
}

}  // namespace

TEST_CASE("decoder gives the same bits in chunks in a crowd and with many threads") {
    for (const KernelTable* table : tables())
        for (WeightMode mode : {WeightMode::int8, WeightMode::bf16, WeightMode::fp32})
            for (bool kv_is_fp32 : {false, true}) {
                const std::vector<float> expected = alone(mode, *table, kv_is_fp32);
                REQUIRE(table->all_finite(expected.data(), kVocab));
                if (mode != WeightMode::bf16)
                    check_equal(alone(mode, scalar_table(), kv_is_fp32), expected, table->name, "as the scalar table");
                World world(mode, *table, 3, kv_is_fp32);
                for (int start : {0, 1, 16, 33, 256}) {
                    const int end = start == 0 ? 1 : start == 1 ? 16 : start == 16 ? 33 : start == 33 ? 256 : 299;
                    if (start == 16) world.add(2, 0, 5);
                    world.add(0, start, end);
                    if (start == 33) world.add(1, 0, 40), world.add(3, 0, 1);
                    world.step();
                }
                world.add(2, 5, 6);
                world.add(1, 40, 41);
                world.add(0, 299, 300);
                world.add(3, 1, 90);
                check_equal(row(world.step(), 2), expected, table->name, "in a crowd");
            }
}

TEST_CASE("decoder scores a prompt in slices as it scores it whole") {
    for (const KernelTable* table : tables()) {
        World whole(WeightMode::int8, *table, 2, false), slices(WeightMode::int8, *table, 4, false);
        whole.add(1, 0, 60, true);
        whole.step();
        for (int start = 0; start < 60; start += 20) {
            slices.add(1, start, start + 20, true);
            slices.step();
            for (int i = 0; i < 19; ++i)  // the last row of a slice has no target here
                REQUIRE_MESSAGE(same(slices.prompt_logprob[i], whole.prompt_logprob[start + i]),
                                text("%s: %d", table->name, start + i));
        }
    }
}

TEST_CASE("decoder does nothing in an empty step") {
    World world(WeightMode::int8, scalar_table(), 2, false);
    world.step();
    world.add(0, 0, 3);
    REQUIRE(world.step().size() == kVocab);
    world.step();
}

}  // namespace hotseat::tests
