// Linear layers whose weights keep the groups, codes and scales of their GGUF file.
#include <stdexcept>
#include <vector>

#include "decoder/linear.h"

namespace hotseat {

// A half panel has one format, so matrices of different formats must not meet in one.
void Linear::plan_halves(Arena& arena, const std::vector<StoredMatrix>& sources) {
    size_t start = 0;
    for (int half = 0; half < 2 * num_panels_; ++half) {
        Kind kind = packed_kind(sources[0].kind);  // of a half that is padding alone
        for (int column = 0; column < kHalfPanel; ++column) {
            int row = 0;
            const StoredMatrix* matrix = find(sources, half / 2, half % 2 * kHalfPanel + column, &row);
            if (matrix == nullptr) break;
            if (column > 0 && packed_kind(matrix->kind) != kind)
                throw std::invalid_argument("matrices of different formats need multiples of 32 rows");
            kind = packed_kind(matrix->kind);
        }
        halves_.push_back({kind, start});
        start += format_of(kind).unit_bytes() * num_units(kind);
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
    const Kind kind = halves_[half].kind;
    const int units = num_units(kind), num_values = units * format_of(kind).unit();
    std::vector<uint8_t> bytes(static_cast<size_t>(num_values) + num_values / 16 * 2);
    std::vector<uint16_t> words(static_cast<size_t>(units) * 2);
    const StoredGroups stored{bytes.data(), words.data(), words.data() + units, bytes.data() + num_values,
                              bytes.data() + num_values + num_values / 16};
    for (int column = 0; column < kHalfPanel; ++column) {
        int row = 0;
        const StoredMatrix* matrix = find(sources, half / 2, half % 2 * kHalfPanel + column, &row);
        if (matrix == nullptr) break;
        kernels.unpack_groups(matrix->kind, matrix->data + row * matrix->row_bytes, in_features_, stored);
        kernels.pack_groups(kind, stored, units, panels_.as<uint8_t>() + halves_[half].start, column);
    }
}

void Linear::compute_grouped(const KernelTable& kernels, const PackedRows& input, int first, int rows, float* out,
                             size_t out_stride, int columns, Epilogue epilogue, int panel) const {
    alignas(64) float sums[kRowBlock * kPanel];
    for (int i = 0; i < 2; ++i) {
        const Half& half = halves_[panel * 2 + i];
        kernels.grouped_sums({
            .kind = half.kind,
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
