#include "decoder/decoder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

namespace hotseat {

namespace {

constexpr int kMinLogitRows = 16;

}  // namespace

Decoder::Decoder(DecoderShape shape, DecoderLimits limits, WeightMode mode, const KernelTable& kernels, int num_threads)
    : shape_(std::move(shape)),
      limits_(limits),
      mode_(mode),
      kernels_(kernels),
      pool_(num_threads),
      kv_({shape_.layer_tables, shape_.num_kv_heads, shape_.head_dim, limits.num_kv_blocks, limits.block_size,
           limits.kv_is_fp32}),
      layers_(shape_.num_layers),
      q_size_(shape_.num_heads * shape_.head_dim),
      kv_size_(shape_.num_kv_heads * shape_.head_dim),
      query_group_size_(shape_.num_heads / shape_.num_kv_heads) {
    const size_t tokens = limits.max_num_batched_tokens;
    for (const Rope& rope : shape_.ropes) rope_tables_.push_back(make_rope_table(rope));
    rope_tables_.push_back(make_rope_table({std::vector<float>(shape_.head_dim / 2, 0.0f), 1.0f}));
    zeros_ = Memory(kv_.head_dim_padded() * sizeof(float));
    x_ = Memory(tokens * shape_.hidden_size * sizeof(float));
    const int mlp_width = std::max(shape_.intermediate_size, shape_.experts.shared_intermediate_size);
    const int widest = std::max({shape_.hidden_size, mlp_width, q_size_, shape_.experts.intermediate_size});
    packed_memory_ = PackedMemory(tokens, packed_row_bytes(mode, widest));
    packed_ = packed_memory_.rows();
    qkv_ = Memory(tokens * (q_size_ + 2 * kv_size_) * sizeof(float));
    query_stride_ = limits.kv_is_fp32 ? shape_.head_dim * sizeof(float) : even_head_dim(shape_.head_dim) * 2;
    queries_ = Memory(tokens * shape_.num_heads * query_stride_);
    attended_ = Memory(tokens * q_size_ * sizeof(float));
    mlp_ = Memory(tokens * mlp_width * sizeof(float));
    is_fused_mlp_ = shape_.gated && shape_.activation == Activation::silu;
    max_logit_rows_ = limits.max_num_seqs + limits.max_num_drafts + kMinLogitRows;
    logits_stride_ = shape_.vocab_size;
    logits_ = Memory(max_logit_rows_ * logits_stride_ * sizeof(float));
    chunk_of_row_.resize(tokens);
    partial_start_.resize(limits.max_num_seqs);
    scratch_.resize(num_threads);
    for (Scratch& scratch : scratch_) {
        scratch.row.resize(widest + 16);
        scratch.sampler = std::make_unique<SamplerScratch>(shape_.vocab_size);
    }
}

Decoder::RopeTable Decoder::make_rope_table(const Rope& rope) const {
    const size_t positions = limits_.max_model_len, half = shape_.head_dim / 2;
    RopeTable table{Memory(positions * half * sizeof(float)), Memory(positions * half * sizeof(float)), rope.factor};
    const bool is_partial = std::find(rope.inverse_frequencies.begin(), rope.inverse_frequencies.end(), 0.0f) !=
                            rope.inverse_frequencies.end();
    if (is_partial) table.factor = 1.0f;
    for (size_t position = 0; position < positions; ++position)
        for (size_t i = 0; i < half; ++i) {
            // The angle is a float32 product, as the models were trained with.
            const float frequency = rope.inverse_frequencies[i], angle = static_cast<float>(position) * frequency;
            const float factor = is_partial && frequency != 0.0f ? rope.factor : 1.0f;
            table.cosine.as<float>()[position * half + i] =
                static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
            table.sine.as<float>()[position * half + i] =
                static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
        }
    return table;
}

// Memory that only some models need, once it is known which vectors they have.
void Decoder::reserve_buffers() {
    const size_t tokens = limits_.max_num_batched_tokens;
    const int mlp_width = std::max(shape_.intermediate_size, shape_.experts.shared_intermediate_size);
    if (!is_fused_mlp_ && mlp_raw_.size() == 0)
        mlp_raw_ = Memory(tokens * mlp_width * (shape_.gated ? 2 : 1) * sizeof(float));
    reserve_expert_buffers();
    const bool is_parallel = shape_.norm_placement == NormPlacement::parallel;
    const Layer& layer = layers_.front();
    const bool needs_deltas = is_parallel || !adds_directly(layer.attention_output_bias, layer.attention_post_norm) ||
                              !adds_directly(layer.down_bias, layer.mlp_post_norm);
    if (needs_deltas && delta_.size() == 0) {
        delta_ = Memory(tokens * shape_.hidden_size * sizeof(float));
    }
    if ((is_parallel || shape_.experts.shared_intermediate_size > 0) && mlp_delta_.size() == 0)
        mlp_delta_ = Memory(tokens * shape_.hidden_size * sizeof(float));
}

namespace {

void check_length(const std::string& name, const std::vector<float>& values, const std::vector<size_t>& allowed) {
    if (std::find(allowed.begin(), allowed.end(), values.size()) != allowed.end()) return;
    throw std::invalid_argument(name + " has " + std::to_string(values.size()) + " values, must have " +
                                std::to_string(allowed.front()));
}

}  // namespace

void Decoder::set_embedding(const StoredMatrix& matrix) {
    check_stored("the embedding", matrix, shape_.hidden_size, shape_.vocab_size);
    embedding_ = matrix;
}

void Decoder::set_output(const StoredMatrix& matrix) {
    check_stored("output", matrix, shape_.hidden_size, shape_.vocab_size);
    output_ = Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, {matrix}, false);
}

void Decoder::set_position_embedding(std::vector<float> values) {
    const size_t width = shape_.hidden_size;
    if (values.size() % width != 0 || values.size() < limits_.max_model_len * width)
        check_length("position_embedding", values, {limits_.max_model_len * width});
    position_embedding_ = std::move(values);
}

void Decoder::set_vector(int layer, const std::string& slot, std::vector<float> values) {
    if (layer < 0) {
        check_length(slot, values,
                     {static_cast<size_t>(slot == "output_bias" ? shape_.vocab_size : shape_.hidden_size)});
        if (slot == "output_norm")
            output_norm_.weight = std::move(values);
        else if (slot == "output_norm_bias")
            output_norm_.bias = std::move(values);
        else if (slot == "output_bias")
            output_bias_ = std::move(values);
        else
            throw std::invalid_argument("there is no vector " + slot);
        return;
    }
    Layer& l = layers_.at(layer);
    const size_t hidden = shape_.hidden_size, q = q_size_, kv = kv_size_, head = shape_.head_dim;
    const size_t inner = shape_.intermediate_size, experts = shape_.experts.count;
    const std::map<std::string, std::vector<size_t>> other_lengths = {
        {"q_norm", {head, q}},
        {"k_norm", {head, kv}},
        {"q_bias", {q}},
        {"k_bias", {kv}},
        {"v_bias", {kv}},
        {"gate_bias", {inner}},
        {"up_bias", {inner}},
        {"router_bias", {experts}},
        {"selection_bias", {experts}},
        {"sinks", {static_cast<size_t>(shape_.num_heads)}},
    };
    const std::map<std::string, std::vector<float>*> vectors = {
        {"attention_norm", &l.attention_norm.weight},
        {"attention_norm_bias", &l.attention_norm.bias},
        {"attention_post_norm", &l.attention_post_norm.weight},
        {"mlp_norm", &l.mlp_norm.weight},
        {"mlp_norm_bias", &l.mlp_norm.bias},
        {"mlp_post_norm", &l.mlp_post_norm.weight},
        {"q_norm", &l.q_norm},
        {"k_norm", &l.k_norm},
        {"q_bias", &l.q_bias},
        {"k_bias", &l.k_bias},
        {"v_bias", &l.v_bias},
        {"attention_output_bias", &l.attention_output_bias},
        {"gate_bias", &l.gate_bias},
        {"up_bias", &l.up_bias},
        {"down_bias", &l.down_bias},
        {"router_bias", &l.experts.router_bias},
        {"selection_bias", &l.experts.selection_bias},
        {"sinks", &l.sinks},
    };
    const auto found = vectors.find(slot);
    if (found == vectors.end()) throw std::invalid_argument("there is no vector " + slot);
    const auto other = other_lengths.find(slot);
    check_length(slot, values, other == other_lengths.end() ? std::vector<size_t>{hidden} : other->second);
    *found->second = std::move(values);
    is_fused_mlp_ = is_fused_mlp_ && l.gate_bias.empty() && l.up_bias.empty();
}

void Decoder::set_qkv(int layer, const StoredMatrix& q, const StoredMatrix& k, const StoredMatrix& v) {
    check_stored("q", q, shape_.hidden_size, q_size_);
    check_stored("k", k, shape_.hidden_size, kv_size_);
    check_stored("v", v, shape_.hidden_size, kv_size_);
    layers_.at(layer).qkv = Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, {q, k, v}, false);
}

void Decoder::set_attention_output(int layer, const StoredMatrix& matrix) {
    check_stored("attention_output", matrix, q_size_, shape_.hidden_size);
    layers_.at(layer).attention_output = Linear(kernels_, pool_, weights_, mode_, q_size_, {matrix}, false);
}

void Decoder::set_gate_up(int layer, const StoredMatrix& gate, const StoredMatrix& up) {
    for (const StoredMatrix& one : gated(gate, up))
        check_stored("gate or up", one, shape_.hidden_size, shape_.intermediate_size);
    layers_.at(layer).gate_up =
        Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, gated(gate, up), is_fused_mlp_);
}

std::vector<StoredMatrix> Decoder::gated(const StoredMatrix& gate, const StoredMatrix& up) const {
    return shape_.gated ? std::vector{gate, up} : std::vector{up};
}

void Decoder::set_down(int layer, const StoredMatrix& matrix) {
    check_stored("down", matrix, shape_.intermediate_size, shape_.hidden_size);
    layers_.at(layer).down = Linear(kernels_, pool_, weights_, mode_, shape_.intermediate_size, {matrix}, false);
}

void Decoder::set_router(int layer, const StoredMatrix& matrix) {
    check_stored("router", matrix, shape_.hidden_size);
    if (matrix.rows != shape_.experts.count)
        check_stored("router", matrix, shape_.hidden_size, shape_.experts.count + 1);
    layers_.at(layer).experts.router =
        Linear(kernels_, pool_, weights_, WeightMode::fp32, shape_.hidden_size, {matrix}, false);
}

void Decoder::set_expert(int layer, int expert, const StoredMatrix& gate, const StoredMatrix& up,
                         const StoredMatrix& down) {
    std::vector<Expert>& experts = layers_.at(layer).experts.experts;
    experts.resize(shape_.experts.count);
    Expert& own = experts.at(expert);
    for (const StoredMatrix& one : gated(gate, up))
        check_stored("gate or up of an expert", one, shape_.hidden_size, shape_.experts.intermediate_size);
    check_stored("down of an expert", down, shape_.experts.intermediate_size, shape_.hidden_size);
    own.gate_up = Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, gated(gate, up), is_fused_mlp_);
    own.down = Linear(kernels_, pool_, weights_, mode_, shape_.experts.intermediate_size, {down}, false);
}

void Decoder::set_expert_bias(int layer, int expert, const std::string& slot, std::vector<float> values) {
    std::vector<Expert>& experts = layers_.at(layer).experts.experts;
    experts.resize(shape_.experts.count);
    Expert& own = experts.at(expert);
    if (slot != "gate_bias" && slot != "up_bias" && slot != "down_bias")
        throw std::invalid_argument("an expert has no vector " + slot);
    const int width = slot == "down_bias" ? shape_.hidden_size : shape_.experts.intermediate_size;
    check_length(slot + " of an expert", values, {static_cast<size_t>(width)});
    (slot == "gate_bias" ? own.gate_bias : slot == "up_bias" ? own.up_bias : own.down_bias) = std::move(values);
    if (slot != "down_bias") is_fused_mlp_ = false;
}

void Decoder::set_shared_expert(int layer, const StoredMatrix& gate, const StoredMatrix& up, const StoredMatrix& down) {
    Experts& own = layers_.at(layer).experts;
    for (const StoredMatrix& one : gated(gate, up))
        check_stored("gate or up of the shared expert", one, shape_.hidden_size,
                     shape_.experts.shared_intermediate_size);
    check_stored("down of the shared expert", down, shape_.experts.shared_intermediate_size, shape_.hidden_size);
    own.shared_gate_up = Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, gated(gate, up), is_fused_mlp_);
    own.shared_down = Linear(kernels_, pool_, weights_, mode_, shape_.experts.shared_intermediate_size, {down}, false);
}

void Decoder::bind(const SamplerInputs& inputs, const BatchArrays& batch, const ResultArrays& results) {
    sampler_ = inputs;
    batch_ = batch;
    results_ = results;
}

void Decoder::set_sampler_lists(const RaggedArrays& bias, const RaggedArrays& allowed, const RaggedArrays& banned) {
    sampler_.logit_bias = bias;
    sampler_.allowed_ids = allowed;
    sampler_.banned_ids = banned;
}

size_t Decoder::weight_bytes() const {
    size_t sum = output_.num_bytes();
    for (const Layer& layer : layers_) {
        const Experts& own = layer.experts;
        for (const Linear* linear : {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down, &own.router,
                                     &own.shared_gate_up, &own.shared_down})
            sum += linear->num_bytes();
        for (const Expert& expert : own.experts) sum += expert.gate_up.num_bytes() + expert.down.num_bytes();
    }
    return sum;
}

void Decoder::step(const BatchCounts& counts) {
    counts_ = counts;
    num_experts_read_ = 0;
    if (counts.num_tokens == 0) return;
    reserve_buffers();
    timer_.start();
    plan_attention();
    pool_.run([this](int worker) { run_worker(worker); });
    timer_.count(Work::other);
}

void Decoder::run_worker(int worker) {
    for_rows(counts_.num_tokens, worker, [&](int row, int) { embed(row); });
    count(Work::other, worker);
    for (int layer = 0; layer < shape_.num_layers; ++layer) run_layer(layer, worker);
    sample_rows(worker);
    prompt_logprobs(worker);
}

void Decoder::embed(int row) {
    const size_t hidden = shape_.hidden_size;
    float* x = x_.as<float>() + row * hidden;
    kernels_.dequantize_row(embedding_.kind, embedding_.data + batch_.token_ids[row] * embedding_.row_bytes,
                            shape_.hidden_size, x);
    if (shape_.embedding_scale != 1.0f) kernels_.scale(x, shape_.hidden_size, shape_.embedding_scale);
    if (!position_embedding_.empty())
        kernels_.add_scaled(x, position_embedding_.data() + batch_.positions[row] * hidden, shape_.hidden_size, 1.0f);
}

const int32_t* Decoder::block_table(int layer, int chunk) const {
    const size_t row = static_cast<size_t>(shape_.layer_tables[layer]) * limits_.max_num_seqs + batch_.seats[chunk];
    return sampler_.seats.block_tables + row * sampler_.seats.blocks_stride;
}

// Leave logits of rows[0 .. num_rows) in `logits`.
void Decoder::compute_logits(const int32_t* rows, int num_rows, int worker, float* logits) {
    pack_normed(output_norm_, output_, worker, num_rows, rows);
    multiply(output_, worker, num_rows, logits, logits_stride_, Epilogue::store);
}

void Decoder::write_hidden(int first, int end, float* out) const {
    const size_t hidden = shape_.hidden_size;
    for (size_t row = first; row < static_cast<size_t>(end); ++row, out += hidden) {
        const float* x = x_.as<float>() + row * hidden;
        if (output_norm_.exists())
            norm_row(output_norm_, x, out);
        else
            std::copy(x, x + hidden, out);
    }
}

void Decoder::finish_logits(float* logits) const {
    if (!output_bias_.empty()) kernels_.add_scaled(logits, output_bias_.data(), shape_.vocab_size, 1.0f);
    if (shape_.logit_scale != 1.0f) kernels_.scale(logits, shape_.vocab_size, shape_.logit_scale);
    if (shape_.logit_softcap > 0.0f) kernels_.softcap(logits, shape_.vocab_size, shape_.logit_softcap);
}

void Decoder::sample_rows(int worker) {
    const int num_rows = counts_.num_samples;
    if (num_rows == 0) return;
    compute_logits(batch_.sample_rows, num_rows, worker, logits_.as<float>());
    pool_.for_each(num_rows, worker, [&](int i, int who) {
        float* logits = logits_.as<float>() + i * logits_stride_;
        finish_logits(logits);
        SamplerScratch& scratch = *scratch_[who].sampler;
        const int seat = batch_.sample_seats[i];
        const SampleStatus status = sample(kernels_, sampler_, {seat, batch_.sample_drafts[i]}, logits,
                                           shape_.vocab_size, scratch, results_.token_ids + i);
        results_.status[i] = static_cast<uint8_t>(status);
        const int num_top = sampler_.seats.sampling[seat].num_logprobs;
        if (num_top >= 0)
            write_logprobs(kernels_, logits, shape_.vocab_size, results_.token_ids[i], num_top, scratch,
                           results_.sampled, i);
    });
    count(Work::sampling, worker);
}

void Decoder::prompt_logprobs(int worker) {
    // Behind the logits of the sampling rows, which may be asked for after the step.
    float* behind = logits_.as<float>() + counts_.num_samples * logits_stride_;
    const int rows_at_once = max_logit_rows_ - counts_.num_samples;
    for (int first = 0; first < counts_.num_prompt_rows; first += rows_at_once) {
        const int num_rows = std::min(rows_at_once, counts_.num_prompt_rows - first);
        compute_logits(batch_.prompt_rows + first, num_rows, worker, behind);
        pool_.for_each(num_rows, worker, [&](int i, int who) {
            float* logits = behind + i * logits_stride_;
            finish_logits(logits);
            write_logprobs(kernels_, logits, shape_.vocab_size, batch_.prompt_targets[first + i],
                           batch_.prompt_num_logprobs[first + i], *scratch_[who].sampler, results_.prompt, first + i);
        });
        count(Work::sampling, worker);
    }
}

}  // namespace hotseat
