// What every instruction set offers to the decoder: one table of plain
// functions per set, chosen at run time. No Python, no allocation, no threads
// in here; callers pass raw pointers and own all memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/quant_format.h"

namespace hotseat {

// How weights are held for multiplication. A step of K covers 4 bytes of one
// activation row and 256 bytes of a panel:
//
//   int8     four values a step, weights as value + 128: the unsigned operand of the dot product
//   bf16     two values a step
//   fp32     one value a step
//   grouped  as GGUF stores them, see quant_format.h
//
enum class WeightMode : int { int8, bf16, fp32, grouped };

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr int kPanel = 64;       // columns (output features) of one micro-panel, the term of BLIS
inline constexpr int kPanelStep = 256;  // bytes of one panel for one step of K
inline constexpr int kTile = 16;        // positions that lie side by side in a key tile
inline constexpr int kPartition = 256;  // positions of one attention partition; partitions start at multiples of this
inline constexpr int kTilesPerPartition = kPartition / kTile;
inline constexpr int kMaxTileRows = 6;     // rows that a linear kernel may hold at once
inline constexpr int kAttentionRows = 24;  // query rows that attention gets at once, a multiple of every kernel's tile

enum class Epilogue : int {
    store,   // out = y
    add,     // out += y (the residual stream)
    swiglu,  // the panel holds 32 gate then 32 up columns: out[c] = silu(gate[c])
             // * up[c]
};

// Rows [0, rows) of activations times one panel.
struct LinearTile {
    WeightMode mode;
    const uint8_t* activations;  // packed rows
    size_t activation_stride;    // bytes from row to row
    const float* row_scale;      // int8 only: [rows]
    const int32_t* row_sum;      // int8 only: [rows], sum of the row's int8 values
    int rows;
    const uint8_t* panel;       // [steps][kPanelStep bytes]
    const float* column_scale;  // int8 only: [kPanel]
    int steps;
    int columns;  // columns that exist, the rest is padding
    float* out;
    size_t out_stride;  // floats from row to row
    Epilogue epilogue;
};

// Rows [0, rows) of activations in groups times one half panel.
struct GroupedTile {
    Kind kind;
    const uint8_t* activations;  // rows of ActivationGroups
    size_t activation_stride;    // bytes from row to row
    int rows;
    const uint8_t* half;
    int num_groups;  // of activations
    float* sums;     // out: [rows][kPanel], of which kHalfPanel are written
};

// One partition of one KV head: tiles of 16 positions.
//   fp32: keys [head_dim][16], values [16][head_dim_padded]
//   bf16: keys [even_head_dim / 2][16][2], values [8][head_dim_padded][2]: what dot products multiply at once, two
//   dimensions of a key or one dimension of the values of two positions, shares four bytes
struct KvPartition {
    const void* keys[kTilesPerPartition];
    const void* values[kTilesPerPartition];
    int num_positions;  // that may be read, in [1, kPartition]

    int num_tiles() const { return (num_positions + kTile - 1) / kTile; }
};

constexpr int even_head_dim(int head_dim) { return (head_dim + 1) / 2 * 2; }

// Of a partition, or of a sequence so far: for each row the largest score, the sum of 2^(score - max), and the values
// weighted so, not yet divided by the sum.
struct AttentionState {
    float* max;     // [rows]
    float* sum;     // [rows]
    float* values;  // [rows][head_dim_padded]
};

// A few query rows against one partition. Row r sees its positions [starts[r], limits[r]), with limits[r] in
// [1, partition.num_positions]; where there are no starts, all from 0 on. A row that sees none gets the lowest maximum,
// the sum 0 and values of -0, which change nothing when they are merged.
struct AttentionTile {
    // Rows, scaled so that scores are base-2 logarithms: [head_dim] of fp32, or [even_head_dim] of bf16.
    const void* queries;
    size_t query_stride;  // bytes from row to row, a multiple of 4
    const int* limits;    // [rows]
    const int* starts;    // [rows] or null
    float softcap;        // scores become softcap * tanh(score / softcap), as base-2 logarithms too; 0: they do not
    int rows;
    int head_dim;
    int head_dim_padded;  // multiple of 16
    const KvPartition* partition;
    const KvPartition* next;  // what is attended to after this, to be fetched meanwhile, or null
    AttentionState out;
};

enum class Activation : int { silu, gelu_tanh, gelu_erf, relu2, swiglu_oai };

struct KernelTable {
    const char* name;

    void (*dequantize_row)(Kind kind, const uint8_t* source, int n, float* out);
    // Multiply each `width`-wide block of x by the normalised Hadamard matrix;
    // width is a power of two <= 64.
    void (*hadamard)(float* x, int n, int width);
    // out = round(x * 127 / max|x|), scale = max|x| / 127; returns the sum of
    // out.
    int32_t (*quantize)(const float* x, int n, int8_t* out, float* scale);
    void (*to_bf16)(const float* x, int n, uint16_t* out);

    // `out` may be `x`.
    void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, int n, float eps, float* out);
    // out = activation(x) * up, or without `up` activation(x); swiglu_oai has an `up` always.
    void (*activate)(Activation kind, const float* x, const float* up, int n, float* out);
    void (*exponentials)(float* x, int n, float max);                   // x = e^(x - max)
    void (*sigmoid)(float* x, int n);                                   // x = 1 / (1 + e^-x)
    void (*softcap)(float* x, int n, float cap);                        // x = cap * tanh(x / cap)
    void (*scale)(float* x, int n, float factor);                       // x *= factor
    void (*add_scaled)(float* x, const float* y, int n, float factor);  // x += factor * y
    // Rotate pairs (i, i + n/2) of one head by the position's angles and multiply by `factor`.
    void (*rope)(float* x, const float* cosine, const float* sine, int n, float factor);

    void (*linear)(const LinearTile& tile);
    // 16 lanes of acc + the dot product of two pairs, see simd/scalar.h: what all bf16 products are made of.
    void (*dot_bf16)(const float* acc, const uint32_t* a, const uint32_t* b, float* out);

    // One stored row of n values; a kind without groups is rounded to Q8_0.
    void (*unpack_groups)(Kind kind, const uint8_t* source, int n, const StoredGroups& out);
    // The same to a column of a half panel.
    void (*pack_groups)(Kind kind, const StoredGroups& row, int num_units, uint8_t* half, int column);
    // n values in whole groups, zeros at the end.
    void (*quantize_groups)(const float* x, int n, ActivationGroup* out);
    void (*grouped_sums)(const GroupedTile& tile);
    // Outputs of one panel from sums[rows][kPanel].
    void (*finish_grouped)(const float* sums, int rows, int columns, Epilogue epilogue, float* out, size_t out_stride);

    // Write one position of one KV head into its tile. n values; values beyond n up to n_padded, and the other half
    // of the last pair of an odd key, become zero.
    void (*write_key_bf16)(const float* x, int n, uint16_t* tile, int lane);
    void (*write_key_fp32)(const float* x, int n, float* tile, int lane);
    void (*write_value_bf16)(const float* x, int n, int n_padded, uint16_t* tile, int lane);
    void (*write_value_fp32)(const float* x, int n, int n_padded, float* tile, int lane);
    void (*attention_bf16)(const AttentionTile& tile);
    void (*attention_fp32)(const AttentionTile& tile);
    // Merge a partition's results into running states, of rows with n values each.
    void (*merge_partitions)(const AttentionState& state, const AttentionState& partition, int rows, int n);
    void (*divide)(const float* values, float sum, int n, float* out);

    // Sampling. All go through the vocabulary in fixed lanes and a fixed order.
    bool (*all_finite)(const float* x, int n);
    float (*maximum)(const float* x, int n);
    double (*sum_of_exponentials)(const float* x, int n,
                                  float max);  // of e^(x - max)
    // relative = e^(x - max), weights = round_half_to_even(relative * 2^30);
    // block_sums[b] adds the b-th 256 weights.
    void (*exp_weights)(const float* x, int n, float max, float* relative, int32_t* weights, int64_t* block_sums);
    void (*divide_all)(float* x, int n, float divisor);

    // What this set can do at most, for comparison: see limits.h.
    float (*read_memory)(const uint8_t* data, size_t num_bytes);
    // Do `rounds` rounds of a mode's dot product, return how many operations that
    // was; state is float[1024].
    int64_t (*multiply_in_registers)(WeightMode mode, int64_t rounds, float* state);
};

const KernelTable& scalar_table();
#if defined(__x86_64__)
const KernelTable& avx2_table();
const KernelTable& avx512_table();
const KernelTable& avx512bf16_table();
#endif

}  // namespace hotseat
