// A decoder-only transformer, as hotseat/models/spec.py describes it.
//
// `step` computes one flat batch. The rows of all chunks lie one after the
// other without padding, and every layer but attention sees rows only. In
// attention a chunk of one token takes the decode path (an item of work is one
// partition of one KV head, partitions may go to different threads), a longer chunk the
// prefill path (an item is a few queries of one KV head over all their partitions).
// Both do the same arithmetic for a row, see kernels/attention.h.
//
// Regions of a layer, each shared out by items and closed by a barrier:
//     pack(norm(x)) | qkv | rope, write KV | attention | pack | output +=
//     | pack(norm(x)) | gate, up | pack | down +=
// Where something stands between a product and the residual stream (a bias, a norm after it, a factor), the product is
// stored and one more region adds it. Other activations than SwiGLU are applied when the rows are packed.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "decoder/experts.h"
#include "decoder/kv_cache.h"
#include "decoder/linear.h"
#include "decoder/sampler.h"
#include "decoder/step.h"
#include "decoder/step_timer.h"
#include "decoder/thread_pool.h"

namespace hotseat {

enum class NormPlacement : int { pre, post, sandwich, parallel };
enum class QkNorm : int { none, head, heads, row };

// Frequencies of one head's pairs (0: the pair is not rotated); cosines and sines of the others are multiplied by
// `factor`.
struct Rope {
    std::vector<float> inverse_frequencies;
    float factor;
};

struct DecoderShape {
    int vocab_size;
    int hidden_size;
    int intermediate_size;
    int num_layers;
    int num_heads;
    int num_kv_heads;
    int head_dim;
    float norm_eps;
    bool norm_is_layer = false;
    NormPlacement norm_placement = NormPlacement::pre;
    bool has_mlp_norm = true;
    QkNorm qk_norm = QkNorm::none;
    bool qk_norm_after_rope = false;
    bool gated = true;
    Activation activation = Activation::silu;
    float attention_scale = 0.0f;    // 0: 1 / sqrt(head_dim)
    float attention_softcap = 0.0f;  // 0: none, as for logits
    float logit_softcap = 0.0f;
    float logit_scale = 1.0f;
    float embedding_scale = 1.0f;
    float residual_scale = 1.0f;
    std::vector<Rope> ropes;
    std::vector<int> layer_ropes;  // [num_layers], an index in `ropes`, -1: no rotary embedding
    ExpertsShape experts;
    std::vector<int> layer_windows;  // [num_layers], positions that a query sees, 0: all
    std::vector<int> layer_tables;   // [num_layers], the block table of a layer's keys and values

    int num_tables() const { return 1 + *std::max_element(layer_tables.begin(), layer_tables.end()); }
};

struct DecoderLimits {
    int max_num_seqs;
    int max_num_batched_tokens;
    int max_model_len;
    int num_kv_blocks;
    int block_size;
    bool kv_is_fp32;
    int max_num_drafts = 0;  // tokens that a step may verify
};

// A weight and, for LayerNorm, a bias; empty where there is no such norm.
struct Norm {
    std::vector<float> weight;
    std::vector<float> bias;

    bool exists() const { return !weight.empty(); }
    const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

struct Layer {
    Norm attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
    std::vector<float> q_norm, k_norm;          // empty: none
    std::vector<float> q_bias, k_bias, v_bias;  // empty: none, as for all biases
    std::vector<float> attention_output_bias, down_bias;
    std::vector<float> gate_bias, up_bias;
    Linear qkv;
    Linear attention_output;
    Linear gate_up;  // of a gated MLP, else up alone
    Linear down;
    Experts experts;           // instead of gate_up and down
    std::vector<float> sinks;  // [num_heads]; empty: none
};

class Decoder {
public:
    Decoder(DecoderShape shape, DecoderLimits limits, WeightMode mode, const KernelTable& kernels, int num_threads);

    // Loading. Matrices are packed when set; the embedding is read where it lies.
    // A wrong size of any of them is a std::invalid_argument.
    void set_embedding(const StoredMatrix& matrix);
    void set_position_embedding(std::vector<float> values);
    void set_output(const StoredMatrix& matrix);
    // A norm's weight or a bias by its slot in hotseat/models/spec.py; layer -1 is the model.
    void set_vector(int layer, const std::string& slot, std::vector<float> values);
    void set_qkv(int layer, const StoredMatrix& q, const StoredMatrix& k, const StoredMatrix& v);
    void set_attention_output(int layer, const StoredMatrix& matrix);
    void set_gate_up(int layer, const StoredMatrix& gate, const StoredMatrix& up);
    void set_down(int layer, const StoredMatrix& matrix);
    // Of a layer with experts: float32 logits of the experts, and one more row for the weight of a shared one.
    void set_router(int layer, const StoredMatrix& matrix);
    void set_expert(int layer, int expert, const StoredMatrix& gate, const StoredMatrix& up, const StoredMatrix& down);
    void set_expert_bias(int layer, int expert, const std::string& slot, std::vector<float> values);
    void set_shared_expert(int layer, const StoredMatrix& gate, const StoredMatrix& up, const StoredMatrix& down);

    // Bind the arrays of all later steps.
    void bind(const SamplerInputs& inputs, const BatchArrays& batch, const ResultArrays& results);
    void set_sampler_lists(const RaggedArrays& bias, const RaggedArrays& allowed, const RaggedArrays& banned);
    void step(const BatchCounts& counts);
    // Where the time of the steps goes, when it is enabled.
    StepTimer& timer() { return timer_; }

    int num_threads() const { return pool_.size(); }
    size_t weight_bytes() const;
    // Of the last step, over all layers.
    int num_experts_read() const { return num_experts_read_; }
    size_t kv_bytes() const { return kv_.num_bytes(); }
    const char* isa() const { return kernels_.name; }
    // Logits of the last step's sampling rows: float[num_samples][vocab_size].
    const float* logits() const { return logits_.as<float>(); }
    int vocab_size() const { return shape_.vocab_size; }
    int hidden_size() const { return shape_.hidden_size; }
    // Write rows [first, end) of the last step after the output norm: float[end - first][hidden_size].
    void write_hidden(int first, int end, float* out) const;
    int num_tables() const { return shape_.num_tables(); }

private:
    // An item of attention work. partition >= 0: a decode's partition, whose result waits
    // in partials; else a prefill's queries.
    struct AttentionItem {
        int chunk;
        int head;
        int partition;
        int first_query;
        int num_queries;
    };
    // Scratch of one worker of the pool.
    struct Scratch {
        std::vector<float> row;
        Memory attention;  // see attention.cpp
        std::unique_ptr<SamplerScratch> sampler;
        RoutingScratch routing;
    };

    void run_worker(int worker);
    // Worker 0 tells the timer that a region has ended.
    void count(Work work, int worker) {
        if (worker == 0) timer_.count(work);
    }
    void run_layer(int index, int worker);
    void embed(int row);
    void norm_row(const Norm& norm, const float* x, float* out) const;
    void normed_row(const Norm& norm, const float* x, float* out) const;
    void pack_normed(const Norm& norm, const Linear& linear, int worker, int num_rows, const int32_t* gather);
    void run_attention(int index, int worker);
    void run_mlp(int index, int worker);
    bool adds_directly(const std::vector<float>& bias, const Norm& post_norm) const;
    void project(const Linear& linear, const std::vector<float>& bias, const Norm& post_norm, int worker, float* delta);
    void add_bias(const std::vector<float>& bias, float* x) const;
    void add_to_residual(int row, const float* delta);
    void activate_row(const std::vector<float>& gate_bias, const std::vector<float>& up_bias, int inner, float* raw,
                      float* out) const;
    void run_gated(const Linear& gate_up, const std::vector<float>& gate_bias, const std::vector<float>& up_bias,
                   int inner, const Linear& down, int worker);
    void run_experts(int index, int worker);
    void choose_experts(const Layer& layer, int worker);
    void group_by_expert(const Experts& own);
    void gather_slot(int slot, int row);
    template <class LinearOf>
    void multiply_experts(const std::vector<ExpertGroup>& groups, int num_items, int worker, float* out, size_t stride,
                          Epilogue epilogue, LinearOf&& linear_of);
    void add_experts(const Layer& layer, int row, float* total);
    void reserve_expert_buffers();
    std::vector<StoredMatrix> gated(const StoredMatrix& gate, const StoredMatrix& up) const;
    void merge_sinks(int layer, int head, const AttentionState& states, int rows) const;
    void norm_heads(const std::vector<float>& weight, float* x, int num_heads) const;
    template <class Body>
    void for_rows(int num_rows, int worker, Body&& body);
    void multiply(const Linear& linear, int worker, int num_rows, float* out, size_t stride, Epilogue epilogue);
    void rope_and_store(int layer, int row);

    void plan_attention();
    void attend(int layer, const AttentionItem& item, Scratch& scratch);
    void attend_decode(int layer, const AttentionItem& item);
    void attend_prefill(int layer, const AttentionItem& item, const Memory& scratch);
    void attend_partition(int layer, const AttentionItem& item, int partition_index, const KvPartition& partition,
                          const KvPartition* next, const AttentionState& states, const AttentionState& results) const;
    void attend_tile(const AttentionTile& tile) const;
    void finish_decode_row(int layer, int row, float* out) const;
    // The first position that a query at `position` sees in a layer.
    int window_start(int layer, int position) const {
        const int window = shape_.layer_windows[layer];
        return window == 0 ? 0 : std::max(0, position - window + 1);
    }
    void finish_logits(float* logits) const;
    float* partial(int chunk, int head, int partition) const;
    uint8_t* queries(int head, int row) const;
    const int32_t* block_table(int layer, int chunk) const;

    void compute_logits(const int32_t* rows, int num_rows, int worker, float* logits);
    void sample_rows(int worker);
    void prompt_logprobs(int worker);

    const DecoderShape shape_;
    const DecoderLimits limits_;
    const WeightMode mode_;
    const KernelTable& kernels_;
    ThreadPool pool_;
    StepTimer timer_;
    KvCache kv_;
    StoredMatrix embedding_{};
    std::vector<float> position_embedding_;  // [positions][hidden], or empty
    Norm output_norm_;
    std::vector<float> output_bias_;
    Arena weights_;
    Linear output_;
    std::vector<Layer> layers_;

    int q_size_, kv_size_, query_group_size_;
    // One table for each of shape_.ropes and one of no rotation: float[max_model_len][head_dim / 2].
    struct RopeTable {
        Memory cosine, sine;
        float factor;  // of all pairs; where it is not that of all, it is in the table
    };
    RopeTable make_rope_table(const Rope& rope) const;
    void reserve_buffers();
    std::vector<RopeTable> rope_tables_;
    bool is_fused_mlp_;  // SwiGLU without biases: gate and up are interleaved, the epilogue multiplies them
    Memory zeros_;       // float[head_dim_padded]
    Memory x_;           // float[max tokens][hidden]: the residual stream
    PackedMemory packed_memory_;
    PackedRows packed_{};
    Memory qkv_;      // float[max tokens][q_size + 2 * kv_size]
    Memory queries_;  // [num_kv_heads][max tokens][group_size], each in the KV cache's type
    size_t query_stride_;
    Memory attended_;           // float[max tokens][q_size]
    Memory mlp_;                // float[max tokens][intermediate]
    Memory mlp_raw_;            // float[max tokens][columns of gate_up], unless the MLP is fused
    Memory delta_, mlp_delta_;  // float[max tokens][hidden]: what waits to be added to the residual stream
    // Of models with experts: rows grouped by expert, see experts.cpp.
    PackedMemory router_rows_, expert_rows_;
    Memory router_logits_;
    Memory expert_inner_, expert_out_;  // float[slots][columns of gate_up or intermediate], float[slots][hidden]
    std::vector<int32_t> chosen_;       // [tokens][per_token], as the weights and slots of each
    std::vector<float> chosen_weights_;
    std::vector<int> slot_of_, row_of_slot_, expert_of_slot_, first_slot_;
    std::vector<ExpertGroup> gate_up_groups_, down_groups_;
    int num_gate_up_items_ = 0, num_down_items_ = 0, num_experts_read_ = 0;
    Memory logits_;  // float[max_logit_rows_][vocab]
    int max_logit_rows_;
    size_t logits_stride_;

    SamplerInputs sampler_{};
    BatchArrays batch_{};
    ResultArrays results_{};
    BatchCounts counts_{};
    std::vector<AttentionItem> items_;
    std::vector<int> chunk_of_row_;      // [num_tokens]
    std::vector<size_t> partial_start_;  // [num_chunks], in floats; decode chunks only
    std::vector<float> partials_;
    std::vector<Scratch> scratch_;
};

// Call body(row, worker) for each row, in items of several rows: enough items for all workers, not so many that
// handing out dominates.
template <class Body>
void Decoder::for_rows(int num_rows, int worker, Body&& body) {
    const int per_item = std::clamp(num_rows / (4 * pool_.size()), 1, 16);
    pool_.for_each((num_rows + per_item - 1) / per_item, worker, [&](int item, int who) {
        const int end = std::min((item + 1) * per_item, num_rows);
        for (int row = item * per_item; row < end; ++row) body(row, who);
    });
}

}  // namespace hotseat
