// Kernels that touch one row at a time.
#include <algorithm>
#include <limits>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Around a vector (16), a Hadamard block (64) and a few of them.
const int kSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 36, 48, 63, 64, 65, 100, 128, 130, 576};

struct Layout {
    Kind kind;
    const char* name;
    int values, bytes;
    std::vector<int> scales;  // offsets of half-precision scales
};
const Layout kLayouts[] = {
    {Kind::F32, "F32", 1, 4, {}},
    {Kind::F16, "F16", 1, 2, {}},
    {Kind::BF16, "BF16", 1, 2, {}},
    {Kind::Q8_0, "Q8_0", 32, 34, {0}},
    {Kind::Q4_0, "Q4_0", 32, 18, {0}},
    {Kind::Q4_1, "Q4_1", 32, 20, {0, 2}},
    {Kind::Q5_0, "Q5_0", 32, 22, {0}},
    {Kind::Q5_1, "Q5_1", 32, 24, {0, 2}},
    {Kind::Q4_K, "Q4_K", 256, 144, {0, 2}},
    {Kind::Q5_K, "Q5_K", 256, 176, {0, 2}},
    {Kind::Q6_K, "Q6_K", 256, 210, {208}},
    {Kind::Q2_K, "Q2_K", 256, 84, {80, 82}},
    {Kind::Q3_K, "Q3_K", 256, 110, {108}},
    {Kind::IQ4_NL, "IQ4_NL", 32, 18, {0}},
    {Kind::IQ4_XS, "IQ4_XS", 256, 136, {0}},
    {Kind::MXFP4, "MXFP4", 32, 17, {}},
};

// Values that rounding finds hard: ties, the ends of the range, neighbours of
// powers of two, and what is not finite.
Guarded<float> awkward_floats(Random& random, int n) {
    const float special[] = {0.0f,   -0.0f,   1.00390625f, 1.01171875f, 3.3895314e38f, -3.4e38f,
                             1e-45f, -1e-39f, kInfinity,   -kInfinity,  kNan,          1.17549435e-38f};
    Guarded<float> values(n);
    for (int i = 0; i < n; ++i) values[i] = random.below(3) ? random.normal() : special[random.below(12)];
    return values;
}

}  // namespace

TEST_CASE("dequantize agrees") {
    Random random(1);
    for (const Layout& layout : kLayouts)
        for (int blocks : {1, 2, 3, 37}) {
            const int n = layout.values * blocks;
            Guarded<uint8_t> source(static_cast<size_t>(blocks) * layout.bytes);
            for (size_t i = 0; i < source.size(); ++i) source[i] = random.byte();
            for (int block = 0; block < blocks; ++block)
                for (int offset : layout.scales) source[block * layout.bytes + offset + 1] &= 0xbf;  // finite
            Guarded<float> expected(n);
            scalar_table().dequantize_row(layout.kind, source.data(), n, expected.data());
            for (const KernelTable* table : tables()) {
                Guarded<float> actual(n);
                table->dequantize_row(layout.kind, source.data(), n, actual.data());
                check_same(actual, expected, table->name, layout.name, n);
            }
        }
}

TEST_CASE("dequantize gives known values") {
    // 2.0 in half precision is 0x4000, -0.5 is 0xb800.
    uint8_t q8[34] = {0x00, 0x40};
    q8[2] = 5, q8[33] = static_cast<uint8_t>(-128);
    uint8_t q4[20] = {0x00, 0x40, 0x00, 0xb8};
    q4[4] = 0xf3;
    for (const KernelTable* table : tables()) {
        float out[32];
        table->dequantize_row(Kind::Q8_0, q8, 32, out);
        REQUIRE_MESSAGE((out[0] == 10.0f && out[1] == 0.0f && out[31] == -256.0f), text("%s", table->name));
        table->dequantize_row(Kind::Q4_1, q4, 32, out);
        REQUIRE_MESSAGE((out[0] == 5.5f && out[16] == 29.5f && out[1] == -0.5f), text("%s", table->name));
    }
}

TEST_CASE("hadamard agrees and is the hadamard matrix") {
    Random random(2);
    for (int width = 1; width <= 64; width *= 2)
        for (int blocks : {1, 2, 5}) {
            const int n = width * blocks;
            const Guarded<float> x = random_floats(random, n);
            Guarded<float> expected = x;
            scalar_table().hadamard(expected.data(), n, width);
            for (int i = 0; i < n; ++i) {
                double sum = 0.0;
                for (int k = 0; k < width; ++k)
                    sum += x[i / width * width + k] * (__builtin_popcount(k & (i % width)) % 2 ? -1.0 : 1.0);
                REQUIRE_MESSAGE(close(expected[i], sum / std::sqrt(width), 1e-5), text("width %d, at %d", width, i));
            }
            for (const KernelTable* table : tables()) {
                Guarded<float> actual = x;
                table->hadamard(actual.data(), n, width);
                check_same(actual, expected, table->name, "hadamard", n);
            }
        }
}

TEST_CASE("quantize agrees and follows its definition") {
    Random random(3);
    for (int n : kSizes)
        for (int round = 0; round < 4; ++round) {
            Guarded<float> x = random_floats(random, n, round == 1 ? 1e30f : round == 2 ? 1e-25f : 1.0f);
            if (round == 3) x[random.below(n)] *= 1000.0f;
            Guarded<int8_t> expected(n);
            float scale;
            const int32_t sum = scalar_table().quantize(x.data(), n, expected.data(), &scale);
            float peak = 0.0f;
            for (int i = 0; i < n; ++i) peak = std::max(peak, std::fabs(x[i]));
            REQUIRE(scale == peak / 127.0f);
            int32_t total = 0;
            for (int i = 0; i < n; ++i) {
                REQUIRE(expected[i] == std::nearbyint(x[i] * (127.0f / peak)));
                total += expected[i];
            }
            REQUIRE(sum == total);
            for (const KernelTable* table : tables()) {
                Guarded<int8_t> actual(n);
                float actual_scale;
                REQUIRE(table->quantize(x.data(), n, actual.data(), &actual_scale) == sum);
                REQUIRE(same(actual_scale, scale));
                check_same(actual, expected, table->name, "quantize", n);
            }
        }
}

TEST_CASE("quantize makes nothing of nothing and keeps broken rows broken") {
    for (const KernelTable* table : tables())
        for (int n : kSizes) {
            Guarded<int8_t> out(n, 5);
            float scale = 1.0f;
            for (float tiny : {0.0f, -0.0f, 1e-31f}) {
                REQUIRE(table->quantize(Guarded<float>(n, tiny).data(), n, out.data(), &scale) == 0);
                REQUIRE(scale == 0.0f);
                for (int i = 0; i < n; ++i) REQUIRE(out[i] == 0);
            }
            for (float broken : {kInfinity, -kInfinity, kNan})
                for (int at : {0, n / 2, n - 1}) {
                    Guarded<float> x(n, 1.0f);
                    x[at] = broken;
                    table->quantize(x.data(), n, out.data(), &scale);
                    REQUIRE_MESSAGE(std::isnan(scale),
                                    text("%s: %d values, %g at %d", table->name, n, static_cast<double>(broken), at));
                }
            out.check();
        }
}

TEST_CASE("bf16 agrees and rounds half to even") {
    Random random(4);
    for (int n : kSizes) {
        const Guarded<float> x = awkward_floats(random, n);
        Guarded<uint16_t> expected(n);
        scalar_table().to_bf16(x.data(), n, expected.data());
        for (int i = 0; i < n; ++i) {
            const float value = bf16_value(expected[i]);
            REQUIRE(std::isnan(value) == std::isnan(x[i]));
            if (std::isnan(value)) continue;
            const uint32_t rest = bits_of(x[i]) & 0xffffu, down = bits_of(x[i]) >> 16;
            const bool goes_up = rest > 0x8000u || (rest == 0x8000u && down % 2 == 1);
            REQUIRE(expected[i] == down + (goes_up ? 1 : 0));
        }
        for (const KernelTable* table : tables()) {
            Guarded<uint16_t> actual(n);
            table->to_bf16(x.data(), n, actual.data());
            check_same(actual, expected, table->name, "to_bf16", n);
        }
    }
}

TEST_CASE("rms norm agrees and follows its definition") {
    Random random(6);
    for (int n : kSizes) {
        const Guarded<float> x = random_floats(random, n, 3.0f), weight = random_floats(random, n);
        Guarded<float> expected(n);
        scalar_table().rms_norm(x.data(), weight.data(), n, 1e-5f, expected.data());
        double squares = 0.0;
        for (int i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
        for (int i = 0; i < n; ++i) REQUIRE(close(expected[i], x[i] * weight[i] / std::sqrt(squares / n + 1e-5), 1e-5));
        for (const KernelTable* table : tables()) {
            Guarded<float> actual(n);
            table->rms_norm(x.data(), weight.data(), n, 1e-5f, actual.data());
            check_same(actual, expected, table->name, "rms_norm", n);
        }
    }
}

TEST_CASE("rope agrees and follows its definition") {
    Random random(7);
    for (int half : {1, 4, 6, 8, 10, 15, 16, 17, 32, 40, 64}) {
        const Guarded<float> x = random_floats(random, 2 * half);
        Guarded<float> cosine(half), sine(half);
        for (int i = 0; i < half; ++i) {
            const float angle = random.normal(10.0f);
            cosine[i] = std::cos(angle), sine[i] = std::sin(angle);
        }
        Guarded<float> expected = x;
        scalar_table().rope(expected.data(), cosine.data(), sine.data(), 2 * half, 1.5f);
        for (int i = 0; i < half; ++i) {
            REQUIRE(close(expected[i], 1.5 * (x[i] * cosine[i] - x[half + i] * sine[i]), 1e-5));
            REQUIRE(close(expected[half + i], 1.5 * (x[half + i] * cosine[i] + x[i] * sine[i]), 1e-5));
        }
        for (const KernelTable* table : tables()) {
            Guarded<float> actual = x;
            table->rope(actual.data(), cosine.data(), sine.data(), 2 * half, 1.5f);
            check_same(actual, expected, table->name, "rope", 2 * half);
        }
    }
}

// Passes over logits

const int kVocabularies[] = {1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 1000, 5003};

TEST_CASE("passes over logits agree and follow their definitions") {
    Random random(8);
    for (int n : kVocabularies) {
        Guarded<float> x = random_floats(random, n, 8.0f);
        for (int i = 0; i < n; ++i) x[i] = std::min(x[i], 30.0f);
        for (int i = 0; i < n / 3; ++i) x[random.below(n)] = -kInfinity;  // masked
        x[random.below(n)] = 30.0f;
        const int num_blocks = (n + 255) / 256;
        Guarded<float> expected_relative(n);
        Guarded<int32_t> expected_weights(n);
        Guarded<int64_t> expected_sums(num_blocks);
        scalar_table().exp_weights(x.data(), n, 30.0f, expected_relative.data(), expected_weights.data(),
                                   expected_sums.data());
        double exact = 0.0;
        std::vector<int64_t> sums(num_blocks);
        for (int i = 0; i < n; ++i) {
            const double w = std::exp(static_cast<double>(x[i]) - 30.0);
            REQUIRE_MESSAGE(close(expected_relative[i], w, 1e-5 * w + 1e-30),
                            text("%d of %d: %g, not %g", i, n, static_cast<double>(expected_relative[i]), w));
            REQUIRE(expected_weights[i] == std::nearbyint(expected_relative[i] * 0x1p30f));
            exact += w;
            sums[i / 256] += expected_weights[i];
        }
        for (int block = 0; block < num_blocks; ++block) REQUIRE(expected_sums[block] == sums[block]);
        for (const KernelTable* table : tables()) {
            REQUIRE_MESSAGE(table->maximum(x.data(), n) == 30.0f, text("%s of %d", table->name, n));
            const double sum = table->sum_of_exponentials(x.data(), n, 30.0f);
            REQUIRE_MESSAGE(sum == scalar_table().sum_of_exponentials(x.data(), n, 30.0f),
                            text("%s of %d", table->name, n));
            REQUIRE_MESSAGE(close(sum, exact, 1e-5 * exact), text("%s of %d", table->name, n));
            Guarded<float> relative(n), divided = x, expected_divided = x;
            Guarded<int32_t> weights(n);
            Guarded<int64_t> block_sums(num_blocks);
            table->exp_weights(x.data(), n, 30.0f, relative.data(), weights.data(), block_sums.data());
            check_same(relative, expected_relative, table->name, "exp_weights", n);
            check_same(weights, expected_weights, table->name, "exp_weights", n);
            check_same(block_sums, expected_sums, table->name, "exp_weights", n);
            table->divide_all(divided.data(), n, 0.7f);
            for (int i = 0; i < n; ++i) expected_divided[i] = x[i] / 0.7f;
            check_same(divided, expected_divided, table->name, "divide_all", n);
        }
    }
}

TEST_CASE("whatever is not finite is found wherever it is") {
    for (const KernelTable* table : tables())
        for (int n : {1, 15, 16, 17, 257}) {
            Guarded<float> x(n, 3.4e38f);
            REQUIRE_MESSAGE(table->all_finite(x.data(), n), text("%s of %d", table->name, n));
            for (int at = 0; at < n; ++at)
                for (float broken : {kInfinity, -kInfinity, kNan}) {
                    x[at] = broken;
                    REQUIRE_MESSAGE(!table->all_finite(x.data(), n), text("%s: %d of %d", table->name, at, n));
                    x[at] = -3.4e38f;
                }
        }
}

TEST_CASE("maximum of masked logits is minus infinity") {
    for (const KernelTable* table : tables())
        for (int n : kVocabularies) {
            Guarded<float> x(n, -kInfinity);
            REQUIRE(table->maximum(x.data(), n) == -kInfinity);
            x[n - 1] = -5.0f;
            REQUIRE(table->maximum(x.data(), n) == -5.0f);
        }
}

}  // namespace hotseat::tests
