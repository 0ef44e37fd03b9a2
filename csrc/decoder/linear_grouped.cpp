// Linear layers whose weights keep the groups, codes and scales of their GGUF file.
#include <stdexcept>
#include <vector>

#include "decoder/linear.h"

namespace hotseat {

namespace {

constexpr int kGroupedRowBlock = 96;

QuantFormat format_of(Kind kind) {
    switch (kind) {
        case Kind::F32:
        case Kind::F16:
        case Kind::BF16:  // rounded to Q8_0
        case Kind::Q8_0:
            return {.bits = 8, .group_size = 32, .offset = 128, .has_minimum = false, .scale_is_half = true};
        case Kind::Q4_0:
            return {.bits = 4, .group_size = 32, .offset = 8, .has_minimum = false, .scale_is_half = true};
        case Kind::Q4_1:
            return {.bits = 4, .group_size = 32, .offset = 0, .has_minimum = true, .scale_is_half = true};
        case Kind::Q5_0:
            return {.bits = 8, .group_size = 32, .offset = 16, .has_minimum = false, .scale_is_half = true};
        case Kind::Q5_1:
            return {.bits = 8, .group_size = 32, .offset = 0, .has_minimum = true, .scale_is_half = true};
        case Kind::Q4_K:
            return {.bits = 4, .group_size = 32, .offset = 0, .has_minimum = true, .scale_is_half = false};
        case Kind::Q5_K:
            return {.bits = 8, .group_size = 32, .offset = 0, .has_minimum = true, .scale_is_half = false};
        case Kind::Q6_K:
            return {.bits = 8, .group_size = 16, .offset = 32, .has_minimum = false, .scale_is_half = false};
    }
    throw std::invalid_argument("there is no such kind of tensor");
}

}  // namespace

// A half panel has one format, so matrices of different formats must not meet in one.
void Linear::plan_halves(Arena& arena, const std::vector<StoredMatrix>& sources) {
    size_t start = 0;
    for (int half = 0; half < 2 * num_panels_; ++half) {
        QuantFormat format = format_of(sources[0].kind);  // of a half that is padding alone
        for (int column = 0; column < kHalfPanel; ++column) {
            int row = 0;
            const StoredMatrix* matrix = find(sources, half / 2, half % 2 * kHalfPanel + column, &row);
            if (matrix == nullptr) break;
            if (column > 0 && !(format_of(matrix->kind) == format))
                throw std::invalid_argument("matrices of different formats need multiples of 32 rows");
            format = format_of(matrix->kind);
        }
        halves_.push_back({format, start});
        start += format.bytes_per_group() * num_groups(format);
    }
    panels_ = arena.take(start + 4096);
}

void Linear::pack_grouped(const KernelTable& kernels, ThreadPool& pool, Arena& arena,
                          const std::vector<StoredMatrix>& sources) {
    plan_halves(arena, sources);
    pool.run([&](int worker) {
        pool.for_each(2 * num_panels_, worker, [&](int half, int) { pack_half(kernels, sources, half); });
    });
}

void Linear::pack_half(const KernelTable& kernels, const std::vector<StoredMatrix>& sources, int half) {
    const QuantFormat& format = halves_[half].format;
    std::vector<uint8_t> codes(static_cast<size_t>(num_groups(format)) * format.group_size);
    std::vector<float> scales(num_groups(format)), minima(num_groups(format));
    for (int column = 0; column < kHalfPanel; ++column) {
        int row = 0;
        const StoredMatrix* matrix = find(sources, half / 2, half % 2 * kHalfPanel + column, &row);
        if (matrix == nullptr) break;
        kernels.unpack_groups(matrix->kind, matrix->data + row * matrix->row_bytes, in_features_, codes.data(),
                              scales.data(), minima.data());
        kernels.pack_groups(format, codes.data(), scales.data(), minima.data(), num_groups(format),
                            panels_.as<uint8_t>() + halves_[half].start, column);
    }
}

void Linear::compute_grouped(const KernelTable& kernels, const PackedRows& input, int first, int rows, float* out,
                             size_t out_stride, int columns, Epilogue epilogue, int panel) const {
    alignas(64) float sums[kGroupedRowBlock * kPanel];
    for (int i = 0; i < 2; ++i) {
        const Half& half = halves_[panel * 2 + i];
        kernels.grouped_sums({
            .format = &half.format,
            .activations = input.values + first * input.stride,
            .activation_stride = input.stride,
            .rows = rows,
            .half = panels_.as<uint8_t>() + half.start,
            .num_groups = (in_features_ + 31) / 32,
            .sums = sums + i * kHalfPanel,
        });
    }
    kernels.finish_grouped(sums, rows, columns, epilogue, out, out_stride);
}

}  // namespace hotseat
