// The definition of bf16 products, and the self-test that notices a machine whose own are others.
#include "decoder/machine.h"

#include <algorithm>
#include <array>
#include <cfenv>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr int kLanes = 16;

float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
float even_of(uint32_t pair) { return float_of(pair << 16); }
float odd_of(uint32_t pair) { return float_of(pair & 0xffff0000u); }

uint32_t pair_of(float even, float odd) { return bits_of(even) >> 16 | (bits_of(odd) & 0xffff0000u); }

float dot(const KernelTable& table, float acc, uint32_t a, uint32_t b) {
    std::array<float, kLanes> accs, out;
    std::array<uint32_t, kLanes> as, bs;
    accs.fill(acc), as.fill(a), bs.fill(b);
    table.dot_bf16(accs.data(), as.data(), bs.data(), out.data());
    for (float lane : out) CHECK(same(lane, out[0]), "%s", table.name);
    return out[0];
}

// Sets that are nearly right: the self-test must notice each.
template <float (*kProduct)(float acc, uint32_t a, uint32_t b)>
KernelTable table_with() {
    KernelTable table = scalar_table();
    table.dot_bf16 = [](const float* acc, const uint32_t* a, const uint32_t* b, float* out) {
        for (int i = 0; i < kLanes; ++i) out[i] = kProduct(acc[i], a[i], b[i]);
    };
    return table;
}
float right(float acc, uint32_t a, uint32_t b) {
    return std::fma(even_of(a), even_of(b), std::fma(odd_of(a), odd_of(b), acc));
}
float even_first(float acc, uint32_t a, uint32_t b) {
    return std::fma(odd_of(a), odd_of(b), std::fma(even_of(a), even_of(b), acc));
}
float products_first(float acc, uint32_t a, uint32_t b) {
    return acc + (odd_of(a) * odd_of(b) + even_of(a) * even_of(b));
}
float rounded_once(float acc, uint32_t a, uint32_t b) {
    return static_cast<float>(static_cast<double>(odd_of(a)) * odd_of(b) +
                              static_cast<double>(even_of(a)) * even_of(b) + acc);
}
float with_denormals(float acc, uint32_t a, uint32_t b) {
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetenv(FE_DFL_ENV);
    const float sum = right(acc, a, b);
    std::fesetenv(&before);
    return sum;
}
float away_from_even(float acc, uint32_t a, uint32_t b) {
    std::fesetround(FE_TOWARDZERO);
    const float sum = right(acc, a, b);
    std::fesetround(FE_TONEAREST);
    return sum;
}

}  // namespace

TEST(bf16_products_are_as_defined) {
    const float tiny = 0x1p-126f, infinity = HUGE_VALF;
    for (const KernelTable* table : tables()) {
        CHECK(dot(*table, 1.0f, pair_of(2.0f, 3.0f), pair_of(5.0f, 7.0f)) == 32.0f, "%s", table->name);
        // The odd product first: 2^24 + 1 is a tie and stays 2^24, then another 1 does so, too.
        CHECK(dot(*table, 0x1p24f, pair_of(1.0f, 1.0f), pair_of(1.0f, 1.0f)) == 0x1p24f, "%s", table->name);
        CHECK(dot(*table, 0x1p24f, pair_of(2.0f, 1.0f), pair_of(1.0f, 1.0f)) == 0x1p24f + 2, "%s", table->name);
        CHECK(dot(*table, 0x1p24f, pair_of(-0x1p24f, 1.0f), pair_of(1.0f, 1.0f)) == 0.0f, "%s", table->name);
        CHECK(dot(*table, 0x1p24f, pair_of(1.0f, -0x1p24f), pair_of(1.0f, 1.0f)) == 1.0f, "%s", table->name);
        // Denormals are zero: as operands, as an accumulator, as a result, between the two.
        CHECK(dot(*table, 0.0f, pair_of(0.0f, tiny / 2), pair_of(0.0f, 0x1p100f)) == 0.0f, "%s", table->name);
        CHECK(bits_of(dot(*table, float_of(1), 0, 0)) == 0, "%s", table->name);
        CHECK(bits_of(dot(*table, 0.0f, pair_of(0x1p-63f, 0.0f), pair_of(0x1p-64f, 0.0f))) == 0, "%s", table->name);
        CHECK(dot(*table, -tiny, pair_of(0x1p-63f, 0x1p-63f), pair_of(0x1p-63f, 0x1p-64f)) == tiny, "%s", table->name);
        CHECK(dot(*table, 0.0f, pair_of(infinity, 1.0f), pair_of(1.0f, 1.0f)) == infinity, "%s", table->name);
        CHECK(std::isnan(dot(*table, 0.0f, pair_of(infinity, 1.0f), 0)), "%s", table->name);
    }
}

TEST(every_set_in_use_multiplies_as_defined) {
    const std::vector<const KernelTable*> used = tables();
    CHECK(used.front() == &scalar_table());
    for (const KernelTable* table : used) CHECK(multiplies_bf16_as_defined(*table), "%s", table->name);
    for (const KernelTable* table : this_machine().rejected) {
        CHECK(!multiplies_bf16_as_defined(*table), "%s", table->name);
        CHECK(std::count(used.begin(), used.end(), table) == 0, "%s", table->name);
    }
}

TEST(a_set_that_multiplies_otherwise_is_noticed) {
    CHECK(multiplies_bf16_as_defined(table_with<right>()));
    CHECK(!multiplies_bf16_as_defined(table_with<even_first>()));
    CHECK(!multiplies_bf16_as_defined(table_with<products_first>()));
    CHECK(!multiplies_bf16_as_defined(table_with<rounded_once>()));
    CHECK(!multiplies_bf16_as_defined(table_with<with_denormals>()));
    CHECK(!multiplies_bf16_as_defined(table_with<away_from_even>()));
}

}  // namespace hotseat::tests
