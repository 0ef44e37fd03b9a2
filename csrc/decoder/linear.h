// Weights of one multiplication, packed once at load.
//
//     micro-panel p    [steps][64 columns][4 bytes]    columns 64p .. 64p + 63
//
// 4 bytes hold 4 int8, 2 bf16 or 1 fp32. In a micro-panel of gate and up, columns 0..31 are gate 32p .., columns 32..63
// are up 32p ...
#pragma once
#include <cstdint>
#include <vector>

#include "decoder/memory.h"
#include "decoder/thread_pool.h"
#include "kernels/table.h"

namespace hotseat {

// A stored matrix [rows][row_bytes]; the memory belongs to the caller.
struct StoredMatrix {
    Kind kind;
    const uint8_t* data;
    size_t row_bytes;
    int rows;
};

// Bytes of a stored row of `n` values; -1 where they are no whole blocks.
int64_t stored_row_bytes(Kind kind, int n);

// Throw std::invalid_argument unless the rows of `matrix` have `n` values each and, where it is known, are `rows`.
void check_stored(const char* name, const StoredMatrix& matrix, int n, int rows = -1);

// Values of K that share four bytes of an activation row; not for grouped.
inline int values_per_step(WeightMode mode) { return mode == WeightMode::int8 ? 4 : mode == WeightMode::bf16 ? 2 : 1; }

// Bytes of one packed activation row.
inline size_t packed_row_bytes(WeightMode mode, int in_features) {
    const size_t n = in_features;
    if (mode == WeightMode::grouped) return (n + 31) / 32 * sizeof(ActivationGroup);
    return (n + values_per_step(mode) - 1) / values_per_step(mode) * 4;
}

// Width of the Hadamard blocks of int8 mode: the largest power of two
// up to 64 that divides n.
int hadamard_width(int n);

// Where a linear layer reads its rows: packed once, used by all that consume
// them.
struct PackedRows {
    uint8_t* values;  // [rows][stride]
    size_t stride;    // bytes
    float* scale;     // [rows], int8 only
    int32_t* sum;     // [rows], int8 only
};

// Memory for packed rows, and where they lie in it.
class PackedMemory {
public:
    PackedMemory() = default;
    PackedMemory(size_t num_rows, size_t row_bytes);  // throws std::bad_alloc

    const PackedRows& rows() const { return rows_; }
    // The rows from `first` on.
    PackedRows from(size_t first) const {
        return {rows_.values + first * rows_.stride, rows_.stride, rows_.scale + first, rows_.sum + first};
    }

private:
    Memory values_, scale_, sum_;
    PackedRows rows_{};
};

class Linear {
public:
    Linear() = default;
    // Columns are the rows of `sources`, one after the other. With `interleave`,
    // sources are gate and up. The arena holds the packed weights and outlives this.
    Linear(const KernelTable& kernels, ThreadPool& pool, Arena& arena, WeightMode mode, int in_features,
           const std::vector<StoredMatrix>& sources, bool interleave);

    int in_features() const { return in_features_; }
    int num_outputs() const { return num_outputs_; }
    size_t num_bytes() const { return panels_.size() + scales_.size(); }
    WeightMode mode() const { return mode_; }
    size_t packed_row_bytes() const { return hotseat::packed_row_bytes(mode_, in_features_); }

    // Pack one row of in_features floats; `x` is destroyed.
    void pack_row(const KernelTable& kernels, float* x, const PackedRows& rows, int row) const;
    int num_items(int rows) const;
    // One item of work: a panel times a block of rows.
    void compute(const KernelTable& kernels, const PackedRows& input, int rows, float* out, size_t out_stride,
                 Epilogue epilogue, int item) const;

private:
    static constexpr int kRowBlock = 96;  // rows of one item; a multiple of every kernel's tile

    // Where a half panel of grouped weights lies, and how it is stored.
    struct Half {
        Kind kind;
        size_t start;  // bytes into panels_
    };
    int num_units(Kind kind) const { return (in_features_ + format_of(kind).unit() - 1) / format_of(kind).unit(); }

    void pack_grouped(const KernelTable& kernels, ThreadPool& pool, Arena& arena,
                      const std::vector<StoredMatrix>& sources);
    void plan_halves(Arena& arena, const std::vector<StoredMatrix>& sources);
    void pack_half(const KernelTable& kernels, const std::vector<StoredMatrix>& sources, int half);
    void compute_grouped(const KernelTable& kernels, const PackedRows& input, int first, int rows, float* out,
                         size_t out_stride, int columns, Epilogue epilogue, int panel) const;
    // Where a column of a panel is stored, or null for padding.
    const StoredMatrix* find(const std::vector<StoredMatrix>& sources, int panel, int column, int* row) const;
    void pack_panel(const KernelTable& kernels, const std::vector<StoredMatrix>& sources, int panel, float* scratch);
    void pack_column(const KernelTable& kernels, float* values, int panel, int column);

    WeightMode mode_ = WeightMode::int8;
    int in_features_ = 0;
    int num_outputs_ = 0;  // columns, of which swiglu makes half as many outputs
    int num_panels_ = 0;
    int steps_ = 0;
    bool interleave_ = false;
    std::vector<Half> halves_;  // grouped only, two a panel
    Slice panels_;
    Slice scales_;  // float[num_panels * 64], used by int8 only
};

}  // namespace hotseat
