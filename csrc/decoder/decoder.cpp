#include "decoder/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace hotseat {

namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kMinLogitRows = 16;

// Rows per item of row-wise work: enough items for everybody, not so many that
// handing out dominates.
int rows_per_item(int num_rows, int num_threads) { return std::clamp(num_rows / (4 * num_threads), 1, 16); }

}  // namespace

Decoder::Decoder(DecoderShape shape, DecoderLimits limits, WeightMode mode, const KernelTable& kernels, int num_threads)
    : shape_(std::move(shape)),
      limits_(limits),
      mode_(mode),
      kernels_(kernels),
      pool_(num_threads),
      kv_({shape_.num_layers, shape_.num_kv_heads, shape_.head_dim, limits.num_kv_blocks, limits.block_size,
           limits.kv_is_fp32}),
      layers_(shape_.num_layers),
      q_size_(shape_.num_heads * shape_.head_dim),
      kv_size_(shape_.num_kv_heads * shape_.head_dim),
      query_group_size_(shape_.num_heads / shape_.num_kv_heads) {
    const size_t tokens = limits.max_num_batched_tokens, half = shape_.head_dim / 2;
    cosine_ = Memory(limits.max_model_len * half * sizeof(float));
    sine_ = Memory(limits.max_model_len * half * sizeof(float));
    for (size_t position = 0; position < static_cast<size_t>(limits.max_model_len); ++position)
        for (size_t i = 0; i < half; ++i) {
            // The angle is a float32 product, as the models were trained with.
            const float angle = static_cast<float>(position) * shape_.inverse_frequencies[i];
            cosine_.as<float>()[position * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
            sine_.as<float>()[position * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
        }
    x_ = Memory(tokens * shape_.hidden_size * sizeof(float));
    const int widest = std::max({shape_.hidden_size, shape_.intermediate_size, q_size_});
    packed_.stride = (packed_row_bytes(mode, widest) + 63) / 64 * 64;
    packed_values_ = Memory(tokens * packed_.stride);
    packed_scale_ = Memory(tokens * sizeof(float));
    packed_sum_ = Memory(tokens * sizeof(int32_t));
    packed_.values = packed_values_.as<uint8_t>();
    packed_.scale = packed_scale_.as<float>();
    packed_.sum = packed_sum_.as<int32_t>();
    qkv_ = Memory(tokens * (q_size_ + 2 * kv_size_) * sizeof(float));
    query_stride_ = limits.kv_is_fp32 ? shape_.head_dim * sizeof(float) : even_head_dim(shape_.head_dim) * 2;
    queries_ = Memory(tokens * shape_.num_heads * query_stride_);
    attended_ = Memory(tokens * q_size_ * sizeof(float));
    mlp_ = Memory(tokens * shape_.intermediate_size * sizeof(float));
    max_logit_rows_ = std::max(limits.max_num_seqs, kMinLogitRows);
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

void Decoder::set_output(const StoredMatrix& matrix) {
    output_ = Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, {matrix}, false);
}

void Decoder::set_norms(int layer, std::vector<float> attention, std::vector<float> mlp) {
    layers_.at(layer).attention_norm = std::move(attention);
    layers_.at(layer).mlp_norm = std::move(mlp);
}

void Decoder::set_qkv(int layer, const StoredMatrix& q, const StoredMatrix& k, const StoredMatrix& v) {
    layers_.at(layer).qkv = Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, {q, k, v}, false);
}

void Decoder::set_attention_output(int layer, const StoredMatrix& matrix) {
    layers_.at(layer).attention_output = Linear(kernels_, pool_, weights_, mode_, q_size_, {matrix}, false);
}

void Decoder::set_gate_up(int layer, const StoredMatrix& gate, const StoredMatrix& up) {
    layers_.at(layer).gate_up = Linear(kernels_, pool_, weights_, mode_, shape_.hidden_size, {gate, up}, true);
}

void Decoder::set_down(int layer, const StoredMatrix& matrix) {
    layers_.at(layer).down = Linear(kernels_, pool_, weights_, mode_, shape_.intermediate_size, {matrix}, false);
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
    for (const Layer& layer : layers_)
        sum += layer.qkv.num_bytes() + layer.attention_output.num_bytes() + layer.gate_up.num_bytes() +
               layer.down.num_bytes();
    return sum;
}

void Decoder::step(const BatchCounts& counts) {
    counts_ = counts;
    if (counts.num_tokens == 0) return;
    timer_.start();
    plan_attention();
    pool_.run([this](int worker) { run_worker(worker); });
    timer_.count(Work::other);
}

void Decoder::run_worker(int worker) {
    const int per_item = rows_per_item(counts_.num_tokens, pool_.size());
    pool_.for_each((counts_.num_tokens + per_item - 1) / per_item, worker, [&](int item, int) {
        const int end = std::min((item + 1) * per_item, counts_.num_tokens);
        for (int row = item * per_item; row < end; ++row) embed(row);
    });
    count(Work::other, worker);
    for (int layer = 0; layer < shape_.num_layers; ++layer) run_layer(layer, worker);
    sample_rows(worker);
    prompt_logprobs(worker);
}

void Decoder::embed(int row) {
    kernels_.dequantize_row(embedding_.kind, embedding_.data + batch_.token_ids[row] * embedding_.row_bytes,
                            shape_.hidden_size, x_.as<float>() + static_cast<size_t>(row) * shape_.hidden_size);
}

void Decoder::run_layer(int index, int worker) {
    const Layer& layer = layers_[index];
    const int rows = counts_.num_tokens;
    const size_t hidden = shape_.hidden_size, qkv_stride = q_size_ + 2 * kv_size_;
    const int per_item = rows_per_item(rows, pool_.size());
    const int row_items = (rows + per_item - 1) / per_item;

    pack_normed(layer.attention_norm.data(), layer.qkv, worker, rows, nullptr);
    multiply(layer.qkv, worker, rows, qkv_.as<float>(), qkv_stride, Epilogue::store);
    pool_.for_each(row_items, worker, [&](int item, int) {
        const int end = std::min((item + 1) * per_item, rows);
        for (int row = item * per_item; row < end; ++row) rope_and_store(index, row);
    });
    count(Work::rope, worker);
    pool_.for_each(static_cast<int>(items_.size()), worker,
                   [&](int item, int who) { attend(index, items_[item], scratch_[who]); });
    count(Work::attention, worker);
    pool_.for_each(row_items, worker, [&](int item, int) {
        const int end = std::min((item + 1) * per_item, rows);
        for (int row = item * per_item; row < end; ++row) {
            float* out = attended_.as<float>() + static_cast<size_t>(row) * q_size_;
            finish_decode_row(row, out);
            layer.attention_output.pack_row(kernels_, out, packed_, row);
        }
    });
    count(Work::pack, worker);
    multiply(layer.attention_output, worker, rows, x_.as<float>(), hidden, Epilogue::add);
    pack_normed(layer.mlp_norm.data(), layer.gate_up, worker, rows, nullptr);
    multiply(layer.gate_up, worker, rows, mlp_.as<float>(), shape_.intermediate_size, Epilogue::swiglu);
    pool_.for_each(row_items, worker, [&](int item, int) {
        const int end = std::min((item + 1) * per_item, rows);
        for (int row = item * per_item; row < end; ++row)
            layer.down.pack_row(kernels_, mlp_.as<float>() + static_cast<size_t>(row) * shape_.intermediate_size,
                                packed_, row);
    });
    count(Work::pack, worker);
    multiply(layer.down, worker, rows, x_.as<float>(), hidden, Epilogue::add);
}

// Pack norm(x) of rows `gather[i]`, or of row i without a gather list, as row
// i.
void Decoder::pack_normed(const float* weight, const Linear& linear, int worker, int num_rows, const int32_t* gather) {
    const int per_item = rows_per_item(num_rows, pool_.size());
    pool_.for_each((num_rows + per_item - 1) / per_item, worker, [&](int item, int who) {
        float* normed = scratch_[who].row.data();
        const int end = std::min((item + 1) * per_item, num_rows);
        for (int i = item * per_item; i < end; ++i) {
            const size_t row = gather == nullptr ? i : gather[i];
            kernels_.rms_norm(x_.as<float>() + row * shape_.hidden_size, weight, shape_.hidden_size, shape_.norm_eps,
                              normed);
            linear.pack_row(kernels_, normed, packed_, i);
        }
    });
    count(Work::pack, worker);
}

void Decoder::multiply(const Linear& linear, int worker, int num_rows, float* out, size_t stride, Epilogue epilogue) {
    pool_.for_each(linear.num_items(num_rows), worker,
                   [&](int item, int) { linear.compute(kernels_, packed_, num_rows, out, stride, epilogue, item); });
    count(&linear == &output_ ? Work::head : Work::linear, worker);
}

void Decoder::rope_and_store(int layer, int row) {
    const int dim = shape_.head_dim, position = batch_.positions[row], chunk = chunk_of_row_[row];
    const float* cosine = cosine_.as<float>() + static_cast<size_t>(position) * (dim / 2);
    const float* sine = sine_.as<float>() + static_cast<size_t>(position) * (dim / 2);
    float* q = qkv_.as<float>() + static_cast<size_t>(row) * (q_size_ + 2 * kv_size_);
    float *k = q + q_size_, *v = k + kv_size_;
    for (int head = 0; batch_.writes_kv[chunk] && head < shape_.num_kv_heads; ++head)
        kv_.fetch(layer, head, block_table(chunk), position);
    // Scores come out as base-2 logarithms.
    const float q_factor = shape_.rope_factor * kLog2E / std::sqrt(static_cast<float>(dim));
    for (int head = 0; head < shape_.num_heads; ++head) {
        kernels_.rope(q + head * dim, cosine, sine, dim, q_factor);
        uint8_t* query = queries(head / query_group_size_, row) + head % query_group_size_ * query_stride_;
        if (limits_.kv_is_fp32)
            std::memcpy(query, q + head * dim, query_stride_);
        else
            kernels_.to_bf16(q + head * dim, dim, reinterpret_cast<uint16_t*>(query));
    }
    if (!batch_.writes_kv[chunk]) return;
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
        kernels_.rope(k + head * dim, cosine, sine, dim, shape_.rope_factor);
        kv_.write(kernels_, layer, head, block_table(chunk), position, k + head * dim, v + head * dim);
    }
}

const int32_t* Decoder::block_table(int chunk) const {
    return sampler_.seats.block_tables + batch_.seats[chunk] * sampler_.seats.blocks_stride;
}

// Leave logits of rows[0 .. num_rows) in logits_.
void Decoder::compute_logits(const int32_t* rows, int num_rows, int worker) {
    pack_normed(output_norm_.data(), output_, worker, num_rows, rows);
    multiply(output_, worker, num_rows, logits_.as<float>(), logits_stride_, Epilogue::store);
}

void Decoder::sample_rows(int worker) {
    const int num_rows = counts_.num_samples;
    if (num_rows == 0) return;
    compute_logits(batch_.sample_rows, num_rows, worker);
    pool_.for_each(num_rows, worker, [&](int i, int who) {
        const float* logits = logits_.as<float>() + i * logits_stride_;
        SamplerScratch& scratch = *scratch_[who].sampler;
        const int seat = batch_.sample_seats[i];
        const SampleStatus status =
            sample(kernels_, sampler_, seat, logits, shape_.vocab_size, scratch, results_.token_ids + i);
        results_.status[i] = static_cast<uint8_t>(status);
        const int num_top = sampler_.seats.num_logprobs[seat];
        if (num_top >= 0)
            write_logprobs(kernels_, logits, shape_.vocab_size, results_.token_ids[i], num_top, scratch,
                           results_.sampled, i);
    });
    count(Work::sampling, worker);
}

void Decoder::prompt_logprobs(int worker) {
    // The logits of the sampling rows, if anybody asks for them after the step,
    // are lost when there are prompt rows.
    for (int first = 0; first < counts_.num_prompt_rows; first += max_logit_rows_) {
        const int num_rows = std::min(max_logit_rows_, counts_.num_prompt_rows - first);
        compute_logits(batch_.prompt_rows + first, num_rows, worker);
        pool_.for_each(num_rows, worker, [&](int i, int who) {
            write_logprobs(kernels_, logits_.as<float>() + i * logits_stride_, shape_.vocab_size,
                           batch_.prompt_targets[first + i], batch_.prompt_num_logprobs[first + i],
                           *scratch_[who].sampler, results_.prompt, first + i);
        });
        count(Work::sampling, worker);
    }
}

}  // namespace hotseat
