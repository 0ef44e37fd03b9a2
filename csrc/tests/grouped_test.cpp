// Weights as GGUF stores them, packed and multiplied through a Linear layer.
#include "decoder/linear.h"
#include "tests/check.h"

namespace hotseat::tests {

namespace {

struct Layout {
    Kind kind;
    const char* name;
    int values;
    int bytes;
    std::vector<int> halves;  // where the fp16 scales lie
};

const std::vector<Layout> kLayouts = {
    {Kind::Q8_0, "Q8_0", 32, 34, {0}},       {Kind::Q4_0, "Q4_0", 32, 18, {0}},
    {Kind::Q4_1, "Q4_1", 32, 20, {0, 2}},    {Kind::Q5_0, "Q5_0", 32, 22, {0}},
    {Kind::Q5_1, "Q5_1", 32, 24, {0, 2}},    {Kind::Q4_K, "Q4_K", 256, 144, {0, 2}},
    {Kind::Q5_K, "Q5_K", 256, 176, {0, 2}},  {Kind::Q6_K, "Q6_K", 256, 210, {208}},
    {Kind::Q2_K, "Q2_K", 256, 84, {80, 82}}, {Kind::Q3_K, "Q3_K", 256, 110, {108}},
    {Kind::IQ4_NL, "IQ4_NL", 32, 18, {0}},   {Kind::IQ4_XS, "IQ4_XS", 256, 136, {0}},
    {Kind::MXFP4, "MXFP4", 32, 17, {}},
};

// A matrix of random blocks whose scales are small, normal or subnormal halves.
struct Stored {
    Stored(Random& random, const Layout& layout, int rows, int n) : row_bytes(n / layout.values * layout.bytes) {
        data.resize(static_cast<size_t>(rows) * row_bytes);
        for (uint8_t& byte : data) byte = random.byte();
        for (size_t block = 0; block < data.size(); block += layout.bytes)
            for (int at : layout.halves) {
                const uint16_t half = static_cast<uint16_t>((random.below(2) << 15) | random.below(0x2400));
                std::memcpy(data.data() + block + at, &half, 2);
            }
        if (layout.kind == Kind::MXFP4)  // exponents of small scales, one of them below what is normal
            for (size_t block = 0; block < data.size(); block += layout.bytes)
                data[block] = static_cast<uint8_t>(random.below(20) == 0 ? 0 : 110 + random.below(12));
        matrix = {layout.kind, data.data(), row_bytes, rows};
    }
    size_t row_bytes;
    std::vector<uint8_t> data;
    StoredMatrix matrix;
};

std::vector<float> multiply(const KernelTable& kernels, ThreadPool& pool, const std::vector<StoredMatrix>& sources,
                            bool interleave, const std::vector<float>& x, int rows, int n, Epilogue epilogue) {
    Arena arena;
    const Linear linear(kernels, pool, arena, WeightMode::grouped, n, sources, interleave);
    const size_t stride = (linear.packed_row_bytes() + 63) / 64 * 64;
    Guarded<uint8_t> values(rows * stride);
    const PackedRows packed{values.data(), stride, nullptr, nullptr};
    for (int row = 0; row < rows; ++row) {
        std::vector<float> copy(x.begin() + row * n, x.begin() + (row + 1) * n);
        linear.pack_row(kernels, copy.data(), packed, row);
    }
    const int outputs = interleave ? linear.num_outputs() / 2 : linear.num_outputs();
    Guarded<float> out(static_cast<size_t>(rows) * outputs, 0.5f);
    pool.run([&](int worker) {
        pool.for_each(linear.num_items(rows), worker, [&](int item, int) {
            linear.compute(kernels, packed, rows, out.data(), outputs, epilogue, item);
        });
    });
    out.check();
    values.check();
    return {out.data(), out.data() + out.size()};
}

// One output by the formula: exact weights, activations rounded in groups of 32 whose scales are 1 .. 16 times one of
// 256 values.
double product(const StoredMatrix& matrix, int column, const float* x, int n) {
    std::vector<float> w(n);
    scalar_table().dequantize_row(matrix.kind, matrix.data + column * matrix.row_bytes, n, w.data());
    double sum = 0;
    for (int start = 0; start < n; start += 256) {
        const int end = std::min(n, start + 256);
        float largest = 0;
        for (int i = start; i < end; ++i) largest = std::max(largest, std::fabs(x[i]));
        for (int g = start; g < end; g += 32) {
            float peak = 0;
            for (int i = g; i < g + 32; ++i) peak = std::max(peak, std::fabs(x[i]));
            const double unit = static_cast<double>(largest) / (127 * 16);
            const double scale = static_cast<double>(std::max(1.0f, std::ceil(peak * 16.0f / largest))) * unit;
            for (int i = g; i < g + 32; ++i) sum += static_cast<double>(w[i]) * std::nearbyint(x[i] / scale) * scale;
        }
    }
    return sum;
}

}  // namespace

TEST_CASE("grouped weights of every kind follow the formula with the same bits") {
    Random random(31);
    ThreadPool pool(2);
    constexpr int n = 512;
    for (const Layout& layout : kLayouts)
        for (int rows : {1, 2, 3, 4, 5, 9}) {
            const Stored first(random, layout, 96, n), second(random, kLayouts[random.below(13)], 37, n);
            std::vector<float> x(rows * n);
            for (float& value : x) value = random.normal();
            const std::vector<StoredMatrix> sources = {first.matrix, second.matrix};
            const auto expected = multiply(scalar_table(), pool, sources, false, x, rows, n, Epilogue::add);
            for (int row = 0; row < rows; ++row)
                for (int c = 0; c < 133; ++c) {
                    const StoredMatrix& matrix = c < 96 ? first.matrix : second.matrix;
                    const double y = 0.5 + product(matrix, c < 96 ? c : c - 96, x.data() + row * n, n);
                    REQUIRE_MESSAGE(close(expected[row * 133 + c], y, 1e-4 * (1 + std::fabs(y))),
                                    text("%s, row %d, column %d: %g, not %g", layout.name, row, c,
                                         static_cast<double>(expected[row * 133 + c]), y));
                }
            for (const KernelTable* table : tables()) {
                const auto actual = multiply(*table, pool, sources, false, x, rows, n, Epilogue::add);
                for (size_t i = 0; i < actual.size(); ++i)
                    REQUIRE_MESSAGE(same(actual[i], expected[i]),
                                    text("%s, %s, value %zu", table->name, layout.name, i));
            }
        }
}

TEST_CASE("grouped weights take no more than their file") {
    Random random(36);
    ThreadPool pool(2);
    for (const Layout& layout : kLayouts) {
        const Stored stored(random, layout, 256, 2048);
        Arena arena;
        const Linear linear(scalar_table(), pool, arena, WeightMode::grouped, 2048, {stored.matrix}, false);
        const double share = static_cast<double>(linear.num_bytes() - 4096) / stored.data.size();
        REQUIRE_MESSAGE(share <= 1.04, text("%s takes %.3f of its file's bytes", layout.name, share));
    }
}

TEST_CASE("grouped extremes stay within their sums") {
    // The largest codes, scales and activations: int32 has little room left.
    Random random(37);
    ThreadPool pool(1);
    constexpr int n = 256, rows = 3;
    for (const Layout& layout : kLayouts)
        for (int byte : {0x00, 0x7f, 0x80, 0xff}) {
            Stored stored(random, layout, 33, n);
            std::vector<uint8_t> scales = stored.data;
            std::fill(stored.data.begin(), stored.data.end(), static_cast<uint8_t>(byte));
            for (size_t block = 0; block < stored.data.size(); block += layout.bytes) {
                for (int at : layout.halves)
                    std::memcpy(stored.data.data() + block + at, scales.data() + block + at, 2);
                if (layout.kind == Kind::MXFP4) stored.data[block] = scales[block];
            }
            std::vector<float> x(rows * n);
            for (int i = 0; i < rows * n; ++i) x[i] = i < n ? 3.0f : i < 2 * n ? -3.0f : i % 2 ? 3.0f : -3.0f;
            const auto expected = multiply(scalar_table(), pool, {stored.matrix}, false, x, rows, n, Epilogue::store);
            for (int row = 0; row < rows; ++row)
                for (int c = 0; c < 33; ++c) {
                    const double y = product(stored.matrix, c, x.data() + row * n, n);
                    REQUIRE_MESSAGE(close(expected[row * 33 + c], y, 1e-4 * (1 + std::fabs(y))),
                                    text("%s, bytes %d: %g, not %g", layout.name, byte,
                                         static_cast<double>(expected[row * 33 + c]), y));
                }
            for (const KernelTable* table : tables()) {
                const auto actual = multiply(*table, pool, {stored.matrix}, false, x, rows, n, Epilogue::store);
                for (size_t i = 0; i < actual.size(); ++i)
                    REQUIRE_MESSAGE(same(actual[i], expected[i]),
                                    text("%s, %s, value %zu", table->name, layout.name, i));
            }
        }
}

TEST_CASE("grouped gate and up may be of different kinds") {
    Random random(32);
    ThreadPool pool(2);
    constexpr int n = 256, outputs = 45, rows = 5;
    const Stored gate(random, kLayouts[2], outputs, n), up(random, kLayouts[7], outputs, n);
    std::vector<float> x(rows * n);
    for (float& value : x) value = random.normal();
    const std::vector<StoredMatrix> sources = {gate.matrix, up.matrix};
    for (const KernelTable* table : tables()) {
        const auto actual = multiply(*table, pool, sources, true, x, rows, n, Epilogue::swiglu);
        for (int row = 0; row < rows; ++row)
            for (int c = 0; c < outputs; ++c) {
                const double g = product(gate.matrix, c, x.data() + row * n, n);
                const double y = g / (1 + std::exp(-g)) * product(up.matrix, c, x.data() + row * n, n);
                REQUIRE_MESSAGE(close(actual[row * outputs + c], y, 1e-4 * (1 + std::fabs(y))),
                                text("%s, row %d, column %d: %g, not %g", table->name, row, c,
                                     static_cast<double>(actual[row * outputs + c]), y));
            }
    }
}

TEST_CASE("grouped matrices of one format may share a half panel") {
    Random random(34);
    ThreadPool pool(2);
    constexpr int n = 64, rows = 5;
    const Stored first(random, kLayouts[0], 40, n), second(random, kLayouts[0], 13, n);
    std::vector<float> x(rows * n);
    for (float& value : x) value = random.normal();
    const auto together =
        multiply(scalar_table(), pool, {first.matrix, second.matrix}, false, x, rows, n, Epilogue::store);
    const auto left = multiply(scalar_table(), pool, {first.matrix}, false, x, rows, n, Epilogue::store);
    const auto right = multiply(scalar_table(), pool, {second.matrix}, false, x, rows, n, Epilogue::store);
    for (int row = 0; row < rows; ++row)
        for (int c = 0; c < 53; ++c)
            REQUIRE_MESSAGE(same(together[row * 53 + c], c < 40 ? left[row * 40 + c] : right[row * 13 + c - 40]),
                            text("row %d, column %d", row, c));
}

TEST_CASE("grouped rounds what is stored without groups") {
    Random random(35);
    ThreadPool pool(2);
    constexpr int outputs = 50, rows = 7;
    for (Kind kind : {Kind::F32, Kind::F16, Kind::BF16})
        for (int n : {1, 16, 32, 33, 70, 128}) {
            const size_t row_bytes = static_cast<size_t>(n) * (kind == Kind::F32 ? 4 : 2);
            std::vector<uint8_t> data(outputs * row_bytes);
            for (int i = 0; i < outputs * n; ++i) {
                const float value = random.normal();
                uint32_t bits;
                std::memcpy(&bits, &value, 4);
                const uint16_t half = static_cast<uint16_t>((random.below(2) << 15) | random.below(0x4400));
                const uint16_t upper = static_cast<uint16_t>(bits >> 16);
                if (kind == Kind::F32) std::memcpy(data.data() + i * 4, &bits, 4);
                if (kind != Kind::F32) std::memcpy(data.data() + i * 2, kind == Kind::F16 ? &half : &upper, 2);
            }
            const StoredMatrix matrix{kind, data.data(), row_bytes, outputs};
            std::vector<float> x(rows * n), w(n);
            for (float& value : x) value = random.normal();
            const auto expected = multiply(scalar_table(), pool, {matrix}, false, x, rows, n, Epilogue::store);
            for (int row = 0; row < rows; ++row)
                for (int c = 0; c < outputs; ++c) {
                    scalar_table().dequantize_row(kind, data.data() + c * row_bytes, n, w.data());
                    double sum = 0, bound = 1e-4;  // half a code of either side a product
                    for (int i = 0; i < n; ++i) {
                        const int end = std::min(n, i / 32 * 32 + 32);
                        float largest_w = 0, largest_x = 0;
                        for (int j = i / 32 * 32; j < end; ++j) {
                            largest_w = std::max(largest_w, std::fabs(w[j]));
                            largest_x = std::max(largest_x, std::fabs(x[row * n + j]));
                        }
                        sum += static_cast<double>(w[i]) * x[row * n + i];
                        bound += 1.01 * (largest_w * std::fabs(x[row * n + i]) + largest_x * std::fabs(w[i])) / 254 +
                                 static_cast<double>(largest_w) * largest_x / 254 / 254;
                    }
                    REQUIRE_MESSAGE(close(expected[row * outputs + c], sum, bound),
                                    text("%d values, row %d, column %d: %g, not %g", n, row, c,
                                         static_cast<double>(expected[row * outputs + c]), sum));
                }
            for (const KernelTable* table : tables()) {
                const auto actual = multiply(*table, pool, {matrix}, false, x, rows, n, Epilogue::store);
                for (size_t i = 0; i < actual.size(); ++i)
                    REQUIRE_MESSAGE(same(actual[i], expected[i]), text("%s, %d values, value %zu", table->name, n, i));
            }
        }
}

TEST_CASE("grouped refuses what it cannot hold") {
    Random random(33);
    ThreadPool pool(1);
    const Stored first(random, kLayouts[0], 40, 64), second(random, kLayouts[1], 32, 64);
    bool refused = false;
    try {
        Arena arena;
        const Linear linear(scalar_table(), pool, arena, WeightMode::grouped, 64, {first.matrix, second.matrix}, false);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    REQUIRE(refused);
}

}  // namespace hotseat::tests
