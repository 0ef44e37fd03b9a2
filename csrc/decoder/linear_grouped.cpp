// Linear layers whose weights keep the groups, codes and scales of their GGUF file.
#include <stdexcept>
#include <vector>

#include "decoder/linear.h"

namespace hotseat {

namespace {

constexpr int kGroupedRowBlock = 96;

GroupFormat format_of(Kind kind) {
    switch (kind) {
        case Kind::Q8_0:
            return {.bits = 8, .group = 32, .offset = 128, .has_minimum = false, .scale_is_half = true};
        case Kind::Q4_0:
            return {.bits = 4, .group = 32, .offset = 8, .has_minimum = false, .scale_is_half = true};
        case Kind::Q4_1:
            return {.bits = 4, .group = 32, .offset = 0, .has_minimum = true, .scale_is_half = true};
        case Kind::Q5_0:
            return {.bits = 8, .group = 32, .offset = 16, .has_minimum = false, .scale_is_half = true};
        case Kind::Q5_1:
            return {.bits = 8, .group = 32, .offset = 0, .has_minimum = true, .scale_is_half = true};
        case Kind::Q4_K:
            return {.bits = 4, .group = 32, .offset = 0, .has_minimum = true, .scale_is_half = false};
        case Kind::Q5_K:
            return {.bits = 8, .group = 32, .offset = 0, .has_minimum = true, .scale_is_half = false};
        case Kind::Q6_K:
            return {.bits = 8, .group = 16, .offset = 32, .has_minimum = false, .scale_is_half = false};
        default:
            throw std::invalid_argument("a tensor is not stored in groups");
    }
}

}  // namespace

bool is_grouped(Kind kind) { return kind != Kind::F32 && kind != Kind::F16 && kind != Kind::BF16; }

// A half panel has one format, so a matrix that is followed by another must fill whole halves.
void Linear::plan_halves(Arena& arena, const std::vector<StoredMatrix>& sources) {
    size_t start = 0;
    const auto append = [&](int source, int first_row) {
        const GroupFormat format = format_of(sources[source < 0 ? 0 : source].kind);
        halves_.push_back({format, start, source, first_row});
        start += format.bytes_per_group() * (in_features_ / format.group);
    };
    if (interleave_) {
        for (int panel = 0; panel < num_panels_; ++panel)
            for (int source = 0; source < 2; ++source) append(source, panel * kHalfPanel);
    } else {
        for (size_t source = 0; source < sources.size(); ++source) {
            if (source + 1 < sources.size() && sources[source].rows % kHalfPanel != 0)
                throw std::invalid_argument("matrices that are multiplied together must have multiples of 32 rows");
            for (int row = 0; row < sources[source].rows; row += kHalfPanel) append(static_cast<int>(source), row);
        }
        if (halves_.size() % 2 != 0) append(-1, 0);
    }
    panels_ = arena.take(start + 4096);
}

void Linear::pack_grouped(const KernelTable& kernels, Team& team, Arena& arena,
                          const std::vector<StoredMatrix>& sources) {
    plan_halves(arena, sources);
    team.run([&](int member) {
        team.for_each(static_cast<int>(halves_.size()), member,
                      [&](int i, int) { pack_half(kernels, sources, halves_[i]); });
    });
}

void Linear::pack_half(const KernelTable& kernels, const std::vector<StoredMatrix>& sources, const Half& half) {
    if (half.source < 0) return;
    const StoredMatrix& matrix = sources[half.source];
    const int num_groups = in_features_ / half.format.group;
    std::vector<uint8_t> codes(in_features_);
    std::vector<float> scales(num_groups), minima(num_groups);
    for (int column = 0; column < kHalfPanel && half.first_row + column < matrix.rows; ++column) {
        kernels.unpack_groups(matrix.kind, matrix.data + (half.first_row + column) * matrix.row_bytes, in_features_,
                              codes.data(), scales.data(), minima.data());
        kernels.pack_groups(half.format, codes.data(), scales.data(), minima.data(), num_groups,
                            panels_.as<uint8_t>() + half.start, column);
    }
}

void Linear::compute_grouped(const KernelTable& kernels, const EncodedRows& input, int first, int rows, float* out,
                             size_t out_stride, int columns, Epilogue epilogue, int panel) const {
    alignas(64) float sums[2][kGroupedRowBlock * kHalfPanel];
    for (int i = 0; i < 2; ++i) {
        const Half& half = halves_[panel * 2 + i];
        kernels.grouped_sums({
            .format = &half.format,
            .activations = input.values + first * input.stride,
            .activation_stride = input.stride,
            .rows = rows,
            .half = panels_.as<uint8_t>() + half.start,
            .num_groups = in_features_ / half.format.group,
            .sums = sums[i],
        });
    }
    kernels.finish_grouped(sums[0], sums[1], rows, columns, epilogue, out, out_stride);
}

}  // namespace hotseat
