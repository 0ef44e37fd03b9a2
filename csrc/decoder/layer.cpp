// One layer of the decoder: attention and MLP between the residual stream and itself.
#include <cmath>
#include <cstring>

#include "decoder/decoder.h"

namespace hotseat {

void Decoder::run_layer(int index, int worker) {
    run_attention(index, worker);
    if (layers_[index].experts.exist())
        run_experts(index, worker);
    else
        run_mlp(index, worker);
}

void Decoder::run_attention(int index, int worker) {
    const Layer& layer = layers_[index];
    const int rows = counts_.num_tokens;
    pack_normed(layer.attention_norm, layer.qkv, worker, rows, nullptr);
    multiply(layer.qkv, worker, rows, qkv_.as<float>(), q_size_ + 2 * kv_size_, Epilogue::store);
    for_rows(rows, worker, [&](int row, int) { rope_and_store(index, row); });
    count(Work::rope, worker);
    pool_.for_each(static_cast<int>(items_.size()), worker,
                   [&](int item, int who) { attend(index, items_[item], scratch_[who]); });
    count(Work::attention, worker);
    for_rows(rows, worker, [&](int row, int) {
        float* out = attended_.as<float>() + static_cast<size_t>(row) * q_size_;
        finish_decode_row(index, row, out);
        layer.attention_output.pack_row(kernels_, out, packed_, row);
    });
    count(Work::pack, worker);
    project(layer.attention_output, layer.attention_output_bias, layer.attention_post_norm, worker, delta_.as<float>());
}

void Decoder::run_mlp(int index, int worker) {
    const Layer& layer = layers_[index];
    const int rows = counts_.num_tokens;
    pack_normed(shape_.has_mlp_norm ? layer.mlp_norm : layer.attention_norm, layer.gate_up, worker, rows, nullptr);
    run_gated(layer.gate_up, layer.gate_bias, layer.up_bias, shape_.intermediate_size, layer.down, worker);
    if (shape_.norm_placement != NormPlacement::parallel) {
        project(layer.down, layer.down_bias, layer.mlp_post_norm, worker, delta_.as<float>());
        return;
    }
    multiply(layer.down, worker, rows, mlp_delta_.as<float>(), shape_.hidden_size, Epilogue::store);
    for_rows(rows, worker, [&](int row, int) {
        float* attended = delta_.as<float>() + static_cast<size_t>(row) * shape_.hidden_size;
        float* delta = mlp_delta_.as<float>() + static_cast<size_t>(row) * shape_.hidden_size;
        add_bias(layer.attention_output_bias, attended);
        add_bias(layer.down_bias, delta);
        kernels_.add_scaled(attended, delta, shape_.hidden_size, 1.0f);
        add_to_residual(row, attended);
    });
    count(Work::pack, worker);
}

// Gate and up of the packed rows, and their product packed again, for `down` to be multiplied with.
void Decoder::run_gated(const Linear& gate_up, const std::vector<float>& gate_bias, const std::vector<float>& up_bias,
                        int inner, const Linear& down, int worker) {
    const int rows = counts_.num_tokens, raw_stride = shape_.gated ? 2 * inner : inner;
    if (is_fused_mlp_)
        multiply(gate_up, worker, rows, mlp_.as<float>(), inner, Epilogue::swiglu);
    else
        multiply(gate_up, worker, rows, mlp_raw_.as<float>(), raw_stride, Epilogue::store);
    for_rows(rows, worker, [&](int row, int) {
        float* values = mlp_.as<float>() + static_cast<size_t>(row) * inner;
        float* raw = mlp_raw_.as<float>() + static_cast<size_t>(row) * raw_stride;
        if (!is_fused_mlp_) activate_row(gate_bias, up_bias, inner, raw, values);
        down.pack_row(kernels_, values, packed_, row);
    });
    count(Work::pack, worker);
}

void Decoder::norm_row(const Norm& norm, const float* x, float* out) const {
    if (shape_.norm_is_layer)
        kernels_.layer_norm(x, norm.weight.data(), norm.bias_or_null(), shape_.hidden_size, shape_.norm_eps, out);
    else
        kernels_.rms_norm(x, norm.weight.data(), shape_.hidden_size, shape_.norm_eps, out);
}

// norm(x), or x itself where there is no norm.
void Decoder::normed_row(const Norm& norm, const float* x, float* out) const {
    if (norm.exists())
        norm_row(norm, x, out);
    else
        std::memcpy(out, x, shape_.hidden_size * sizeof(float));
}

// Pack norm(x) of rows `gather[i]`, or of row i without a gather list, as row i; x itself where there is no norm.
void Decoder::pack_normed(const Norm& norm, const Linear& linear, int worker, int num_rows, const int32_t* gather) {
    for_rows(num_rows, worker, [&](int i, int who) {
        const size_t row = gather == nullptr ? i : gather[i];
        const float* x = x_.as<float>() + row * shape_.hidden_size;
        float* normed = scratch_[who].row.data();
        normed_row(norm, x, normed);
        linear.pack_row(kernels_, normed, packed_, i);
    });
    count(Work::pack, worker);
}

void Decoder::multiply(const Linear& linear, int worker, int num_rows, float* out, size_t stride, Epilogue epilogue) {
    pool_.for_each(linear.num_items(num_rows), worker,
                   [&](int item, int) { linear.compute(kernels_, packed_, num_rows, out, stride, epilogue, item); });
    count(&linear == &output_ ? Work::head : Work::linear, worker);
}

// Whether a product can be added to the residual stream as it is.
bool Decoder::adds_directly(const std::vector<float>& bias, const Norm& post_norm) const {
    return bias.empty() && !post_norm.exists() && shape_.residual_scale == 1.0f;
}

void Decoder::add_bias(const std::vector<float>& bias, float* x) const {
    if (!bias.empty()) kernels_.add_scaled(x, bias.data(), static_cast<int>(bias.size()), 1.0f);
}

void Decoder::add_to_residual(int row, const float* delta) {
    kernels_.add_scaled(x_.as<float>() + static_cast<size_t>(row) * shape_.hidden_size, delta, shape_.hidden_size,
                        shape_.residual_scale);
}

// The product that ends attention or the MLP, added to the residual stream; of a parallel block it only lies in
// `delta`.
void Decoder::project(const Linear& linear, const std::vector<float>& bias, const Norm& post_norm, int worker,
                      float* delta) {
    const int rows = counts_.num_tokens;
    const size_t hidden = shape_.hidden_size;
    const bool is_parallel = shape_.norm_placement == NormPlacement::parallel;
    if (!is_parallel && adds_directly(bias, post_norm)) {
        multiply(linear, worker, rows, x_.as<float>(), hidden, Epilogue::add);
        return;
    }
    multiply(linear, worker, rows, delta, hidden, Epilogue::store);
    if (is_parallel) return;
    for_rows(rows, worker, [&](int row, int) {
        float* values = delta + static_cast<size_t>(row) * hidden;
        add_bias(bias, values);
        if (post_norm.exists()) norm_row(post_norm, values, values);
        add_to_residual(row, values);
    });
    count(Work::pack, worker);
}

void Decoder::activate_row(const std::vector<float>& gate_bias, const std::vector<float>& up_bias, int inner,
                           float* raw, float* out) const {
    float *gate = shape_.gated ? raw : nullptr, *up = shape_.gated ? raw + inner : raw;
    if (gate != nullptr) add_bias(gate_bias, gate);
    add_bias(up_bias, up);
    kernels_.activate(shape_.activation, gate != nullptr ? gate : up, gate != nullptr ? up : nullptr, inner, out);
}

// Norm of queries or keys of all heads of a row.
void Decoder::norm_heads(const std::vector<float>& weight, float* x, int num_heads) const {
    if (weight.empty()) return;
    const auto norm = [&](float* values, const float* own, int n) {
        if (shape_.norm_is_layer)
            kernels_.layer_norm(values, own, nullptr, n, shape_.norm_eps, values);
        else
            kernels_.rms_norm(values, own, n, shape_.norm_eps, values);
    };
    const int dim = shape_.head_dim;
    if (shape_.qk_norm == QkNorm::row) return norm(x, weight.data(), num_heads * dim);
    for (int head = 0; head < num_heads; ++head)
        norm(x + head * dim, weight.data() + (shape_.qk_norm == QkNorm::heads ? head * dim : 0), dim);
}

// Biases, norms and rotary embedding of a row's queries, keys and values; keys and values go into the cache.
void Decoder::rope_and_store(int index, int row) {
    const Layer& layer = layers_[index];
    const int dim = shape_.head_dim, position = batch_.positions[row], chunk = chunk_of_row_[row];
    const int rope = shape_.layer_ropes[index];
    const RopeTable& table = rope_tables_[rope < 0 ? rope_tables_.size() - 1 : rope];
    const float* cosine = table.cosine.as<float>() + static_cast<size_t>(position) * (dim / 2);
    const float* sine = table.sine.as<float>() + static_cast<size_t>(position) * (dim / 2);
    float* q = qkv_.as<float>() + static_cast<size_t>(row) * (q_size_ + 2 * kv_size_);
    float *k = q + q_size_, *v = k + kv_size_;
    for (int head = 0; batch_.writes_kv[chunk] && head < shape_.num_kv_heads; ++head)
        kv_.fetch(index, head, block_table(index, chunk), position);
    add_bias(layer.q_bias, q), add_bias(layer.k_bias, k), add_bias(layer.v_bias, v);
    const bool is_late = shape_.qk_norm_after_rope;
    if (!is_late) norm_heads(layer.q_norm, q, shape_.num_heads), norm_heads(layer.k_norm, k, shape_.num_kv_heads);
    // Scores come out as base-2 logarithms.
    const float scale =
        shape_.attention_scale > 0.0f ? shape_.attention_scale * kLog2E : kLog2E / std::sqrt(static_cast<float>(dim));
    const float q_factor = shape_.attention_scale > 0.0f ? table.factor * scale
                                                         : table.factor * kLog2E / std::sqrt(static_cast<float>(dim));
    for (int head = 0; head < shape_.num_heads; ++head)
        kernels_.rope(q + head * dim, cosine, sine, dim, is_late ? table.factor : q_factor);
    if (is_late) {
        norm_heads(layer.q_norm, q, shape_.num_heads);
        kernels_.scale(q, q_size_, scale);
    }
    for (int head = 0; head < shape_.num_heads; ++head) {
        uint8_t* query = queries(head / query_group_size_, row) + head % query_group_size_ * query_stride_;
        if (limits_.kv_is_fp32)
            std::memcpy(query, q + head * dim, query_stride_);
        else
            kernels_.to_bf16(q + head * dim, dim, reinterpret_cast<uint16_t*>(query));
    }
    if (!batch_.writes_kv[chunk]) return;
    for (int head = 0; head < shape_.num_kv_heads; ++head)
        kernels_.rope(k + head * dim, cosine, sine, dim, table.factor);
    if (is_late) norm_heads(layer.k_norm, k, shape_.num_kv_heads);
    for (int head = 0; head < shape_.num_kv_heads; ++head)
        kv_.write(kernels_, index, head, block_table(index, chunk), position, k + head * dim, v + head * dim);
}

}  // namespace hotseat
