#include "decoder/linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace hotseat {

namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

PackedMemory::PackedMemory(size_t num_rows, size_t row_bytes) {
    rows_.stride = (row_bytes + 63) / 64 * 64;
    values_ = Memory(num_rows * rows_.stride);
    scale_ = Memory(num_rows * sizeof(float));
    sum_ = Memory(num_rows * sizeof(int32_t));
    rows_.values = values_.as<uint8_t>();
    rows_.scale = scale_.as<float>();
    rows_.sum = sum_.as<int32_t>();
}

int hadamard_width(int n) {
    int width = 1;
    while (width < 64 && n % (width * 2) == 0) width *= 2;
    return width;
}

int64_t stored_row_bytes(Kind kind, int n) {
    const auto blocks = [n](int values, int64_t bytes) { return n % values == 0 ? n / values * bytes : -1; };
    switch (kind) {
        case Kind::F32:
            return blocks(1, 4);
        case Kind::F16:
        case Kind::BF16:
            return blocks(1, 2);
        case Kind::Q8_0:
            return blocks(32, 34);
        case Kind::Q4_0:
        case Kind::IQ4_NL:
            return blocks(32, 18);
        case Kind::Q4_1:
            return blocks(32, 20);
        case Kind::Q5_0:
            return blocks(32, 22);
        case Kind::Q5_1:
            return blocks(32, 24);
        case Kind::MXFP4:
            return blocks(32, 17);
        case Kind::Q2_K:
            return blocks(256, 84);
        case Kind::Q3_K:
            return blocks(256, 110);
        case Kind::Q4_K:
            return blocks(256, 144);
        case Kind::Q5_K:
            return blocks(256, 176);
        case Kind::Q6_K:
            return blocks(256, 210);
        case Kind::IQ4_XS:
            return blocks(256, 136);
    }
    return -1;
}

void check_stored(const char* name, const StoredMatrix& matrix, int n, int rows) {
    const int64_t row_bytes = stored_row_bytes(matrix.kind, n);
    if (static_cast<int64_t>(matrix.row_bytes) != row_bytes)
        throw std::invalid_argument(std::string(name) + " has rows of " + std::to_string(matrix.row_bytes) +
                                    " bytes, but " + std::to_string(n) + " values of its type have " +
                                    std::to_string(row_bytes));
    if (rows >= 0 && matrix.rows != rows)
        throw std::invalid_argument(std::string(name) + " has " + std::to_string(matrix.rows) + " rows, must have " +
                                    std::to_string(rows));
}

Linear::Linear(const KernelTable& kernels, ThreadPool& pool, Arena& arena, WeightMode mode, int in_features,
               const std::vector<StoredMatrix>& sources, bool interleave)
    : mode_(mode), in_features_(in_features), interleave_(interleave) {
    for (const StoredMatrix& source : sources) {
        check_stored("a matrix", source, in_features);
        num_outputs_ += source.rows;
    }
    num_panels_ = interleave ? ceil_div(sources[0].rows, kPanel / 2) : ceil_div(num_outputs_, kPanel);
    if (mode == WeightMode::grouped) {
        pack_grouped(kernels, pool, arena, sources);
        return;
    }
    steps_ = ceil_div(in_features, values_per_step(mode));
    // Reading ahead may touch a little beyond the last panel.
    panels_ = arena.take(static_cast<size_t>(num_panels_) * steps_ * kPanelStep + 4096);
    scales_ = arena.take(static_cast<size_t>(num_panels_) * kPanel * sizeof(float));
    std::vector<std::vector<float>> scratch(pool.size());
    pool.run([&](int worker) {
        scratch[worker].resize(static_cast<size_t>(in_features) + 16);
        pool.for_each(num_panels_, worker,
                      [&](int panel, int who) { pack_panel(kernels, sources, panel, scratch[who].data()); });
    });
}

const StoredMatrix* Linear::find(const std::vector<StoredMatrix>& sources, int panel, int column, int* row) const {
    size_t source = 0;
    *row = panel * kPanel + column;
    if (interleave_) {
        source = column / (kPanel / 2);
        *row = panel * (kPanel / 2) + column % (kPanel / 2);
        return *row < sources[source].rows ? &sources[source] : nullptr;
    }
    while (source < sources.size() && *row >= sources[source].rows) *row -= sources[source++].rows;
    return source < sources.size() ? &sources[source] : nullptr;
}

void Linear::pack_panel(const KernelTable& kernels, const std::vector<StoredMatrix>& sources, int panel,
                        float* scratch) {
    if (mode_ == WeightMode::int8)  // the code of zero, also for columns and
                                    // values that are padding
        std::memset(panels_.as<uint8_t>() + static_cast<size_t>(panel) * steps_ * kPanelStep, 128,
                    static_cast<size_t>(steps_) * kPanelStep);
    for (int column = 0; column < kPanel; ++column) {
        int row = 0;
        const StoredMatrix* matrix = find(sources, panel, column, &row);
        if (matrix == nullptr) continue;
        kernels.dequantize_row(matrix->kind, matrix->data + row * matrix->row_bytes, in_features_, scratch);
        pack_column(kernels, scratch, panel, column);
    }
}

void Linear::pack_column(const KernelTable& kernels, float* values, int panel, int column) {
    uint8_t* out = panels_.as<uint8_t>() + static_cast<size_t>(panel) * steps_ * kPanelStep + column * 4;
    if (mode_ == WeightMode::fp32) {
        for (int k = 0; k < in_features_; ++k) std::memcpy(out + static_cast<size_t>(k) * kPanelStep, values + k, 4);
        return;
    }
    std::vector<uint8_t> row(static_cast<size_t>(steps_) * 4, 0);
    if (mode_ == WeightMode::int8) {
        kernels.hadamard(values, in_features_, hadamard_width(in_features_));
        kernels.quantize(values, in_features_, reinterpret_cast<int8_t*>(row.data()),
                         scales_.as<float>() + panel * kPanel + column);
        for (uint8_t& byte : row) byte ^= 0x80;
    } else {
        kernels.to_bf16(values, in_features_, reinterpret_cast<uint16_t*>(row.data()));
    }
    for (int s = 0; s < steps_; ++s) std::memcpy(out + static_cast<size_t>(s) * kPanelStep, row.data() + s * 4, 4);
}

void Linear::pack_row(const KernelTable& kernels, float* x, const PackedRows& rows, int row) const {
    uint8_t* out = rows.values + row * rows.stride;
    switch (mode_) {
        case WeightMode::int8:
            kernels.hadamard(x, in_features_, hadamard_width(in_features_));
            rows.sum[row] = kernels.quantize(x, in_features_, reinterpret_cast<int8_t*>(out), rows.scale + row);
            break;
        case WeightMode::bf16:
            kernels.to_bf16(x, in_features_, reinterpret_cast<uint16_t*>(out));
            break;
        case WeightMode::fp32:
            std::memcpy(out, x, static_cast<size_t>(in_features_) * 4);
            return;
        case WeightMode::grouped:
            kernels.quantize_groups(x, in_features_, reinterpret_cast<ActivationGroup*>(out));
            return;
    }
    const size_t used = static_cast<size_t>(in_features_) * 4 / values_per_step(mode_);
    std::memset(out + used, 0, packed_row_bytes() - used);
}

int Linear::num_items(int rows) const { return num_panels_ * ceil_div(rows, kRowBlock); }

void Linear::compute(const KernelTable& kernels, const PackedRows& input, int rows, float* out, size_t out_stride,
                     Epilogue epilogue, int item) const {
    // Row blocks of equal size, so that the last one is not a crumb.
    const int num_blocks = ceil_div(rows, kRowBlock);
    const int block_rows = num_blocks == 1 ? rows : ceil_div(ceil_div(rows, num_blocks), kMaxTileRows) * kMaxTileRows;
    const int panel = item / num_blocks, first = item % num_blocks * block_rows;
    if (first >= rows) return;
    const int outputs_per_panel = interleave_ ? kPanel / 2 : kPanel;
    const int outputs = interleave_ ? num_outputs_ / 2 : num_outputs_;
    const int outputs_here = std::min(outputs_per_panel, outputs - panel * outputs_per_panel);
    if (mode_ == WeightMode::grouped) {
        compute_grouped(kernels, input, first, std::min(block_rows, rows - first),
                        out + first * out_stride + panel * outputs_per_panel, out_stride,
                        interleave_ ? 2 * outputs_here : outputs_here, epilogue, panel);
        return;
    }
    kernels.linear({
        .mode = mode_,
        .activations = input.values + first * input.stride,
        .activation_stride = input.stride,
        .row_scale = input.scale + first,
        .row_sum = input.sum + first,
        .rows = std::min(block_rows, rows - first),
        .panel = panels_.as<uint8_t>() + static_cast<size_t>(panel) * steps_ * kPanelStep,
        .column_scale = scales_.as<float>() + panel * kPanel,
        .steps = steps_,
        .columns = interleave_ ? 2 * outputs_here : outputs_here,
        .out = out + first * out_stride + panel * outputs_per_panel,
        .out_stride = out_stride,
        .epilogue = epilogue,
    });
}

}  // namespace hotseat
