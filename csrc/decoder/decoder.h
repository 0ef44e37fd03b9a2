// A decoder-only transformer of the Llama family: pre-norm RMSNorm, rotary
// attention with grouped KV heads, SwiGLU.
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
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "decoder/kv_cache.h"
#include "decoder/linear.h"
#include "decoder/sampler.h"
#include "decoder/step.h"
#include "decoder/step_timer.h"
#include "decoder/thread_pool.h"

namespace hotseat {

struct DecoderShape {
    int vocab_size;
    int hidden_size;
    int intermediate_size;
    int num_layers;
    int num_heads;
    int num_kv_heads;
    int head_dim;
    float norm_eps;
    float rope_factor;  // cos and sin are multiplied by it
    std::vector<float> inverse_frequencies;
};

struct DecoderLimits {
    int max_num_seqs;
    int max_num_batched_tokens;
    int max_model_len;
    int num_kv_blocks;
    int block_size;
    bool kv_is_fp32;
};

struct Layer {
    std::vector<float> attention_norm;
    std::vector<float> mlp_norm;
    Linear qkv;
    Linear attention_output;
    Linear gate_up;
    Linear down;
};

class Decoder {
public:
    Decoder(DecoderShape shape, DecoderLimits limits, WeightMode mode, const KernelTable& kernels, int num_threads);

    // Loading. Matrices are packed when set; the embedding is read where it lies.
    void set_embedding(const StoredMatrix& matrix) { embedding_ = matrix; }
    void set_output_norm(std::vector<float> weight) { output_norm_ = std::move(weight); }
    void set_output(const StoredMatrix& matrix);
    void set_norms(int layer, std::vector<float> attention, std::vector<float> mlp);
    void set_qkv(int layer, const StoredMatrix& q, const StoredMatrix& k, const StoredMatrix& v);
    void set_attention_output(int layer, const StoredMatrix& matrix);
    void set_gate_up(int layer, const StoredMatrix& gate, const StoredMatrix& up);
    void set_down(int layer, const StoredMatrix& matrix);

    // Bind the arrays of all later steps.
    void bind(const SamplerInputs& inputs, const BatchArrays& batch, const ResultArrays& results);
    void set_sampler_lists(const RaggedArrays& bias, const RaggedArrays& allowed, const RaggedArrays& banned);
    void step(const BatchCounts& counts);
    // Where the time of the steps goes, when it is enabled.
    StepTimer& timer() { return timer_; }

    int num_threads() const { return pool_.size(); }
    size_t weight_bytes() const;
    size_t kv_bytes() const { return kv_.num_bytes(); }
    const char* isa() const { return kernels_.name; }
    // Logits of the last step's sampling rows: float[num_samples][vocab_size].
    const float* logits() const { return logits_.as<float>(); }
    int vocab_size() const { return shape_.vocab_size; }

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
    };

    void run_worker(int worker);
    // Worker 0 tells the timer that a region has ended.
    void count(Work work, int worker) {
        if (worker == 0) timer_.count(work);
    }
    void run_layer(int index, int worker);
    void embed(int row);
    void pack_normed(const float* weight, const Linear& linear, int worker, int num_rows, const int32_t* gather);
    void multiply(const Linear& linear, int worker, int num_rows, float* out, size_t stride, Epilogue epilogue);
    void rope_and_store(int layer, int row);

    void plan_attention();
    void attend(int layer, const AttentionItem& item, Scratch& scratch);
    void attend_decode(int layer, const AttentionItem& item);
    void attend_prefill(int layer, const AttentionItem& item, const Memory& scratch);
    void attend_partition(const AttentionItem& item, int partition_index, const KvPartition& partition,
                          const KvPartition* next, const AttentionState& states, const AttentionState& results) const;
    void attend_tile(const AttentionTile& tile) const;
    void finish_decode_row(int row, float* out) const;
    float* partial(int chunk, int head, int partition) const;
    uint8_t* queries(int head, int row) const;
    const int32_t* block_table(int chunk) const;

    void compute_logits(const int32_t* rows, int num_rows, int worker);
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
    std::vector<float> output_norm_;
    Arena weights_;
    Linear output_;
    std::vector<Layer> layers_;

    int q_size_, kv_size_, query_group_size_;
    Memory cosine_, sine_;  // float[max_model_len][head_dim / 2]
    Memory x_;              // float[max tokens][hidden]: the residual stream
    Memory packed_values_, packed_scale_, packed_sum_;
    PackedRows packed_{};
    Memory qkv_;      // float[max tokens][q_size + 2 * kv_size]
    Memory queries_;  // [num_kv_heads][max tokens][group_size], each in the KV cache's type
    size_t query_stride_;
    Memory attended_;  // float[max tokens][q_size]
    Memory mlp_;       // float[max tokens][intermediate]
    Memory logits_;    // float[max_logit_rows_][vocab]
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

}  // namespace hotseat
