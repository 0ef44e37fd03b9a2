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
    for (float lane : out) REQUIRE_MESSAGE(same(lane, out[0]), text("%s", table.name));
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

TEST_CASE("bf16 products are as defined") {
    const float tiny = 0x1p-126f, infinity = HUGE_VALF;
    for (const KernelTable* table : tables()) {
        REQUIRE_MESSAGE(dot(*table, 1.0f, pair_of(2.0f, 3.0f), pair_of(5.0f, 7.0f)) == 32.0f, text("%s", table->name));
        // The odd product first: 2^24 + 1 is a tie and stays 2^24, then another 1 does so, too.
        REQUIRE_MESSAGE(dot(*table, 0x1p24f, pair_of(1.0f, 1.0f), pair_of(1.0f, 1.0f)) == 0x1p24f,
                        text("%s", table->name));
        REQUIRE_MESSAGE(dot(*table, 0x1p24f, pair_of(2.0f, 1.0f), pair_of(1.0f, 1.0f)) == 0x1p24f + 2,
                        text("%s", table->name));
        REQUIRE_MESSAGE(dot(*table, 0x1p24f, pair_of(-0x1p24f, 1.0f), pair_of(1.0f, 1.0f)) == 0.0f,
                        text("%s", table->name));
        REQUIRE_MESSAGE(dot(*table, 0x1p24f, pair_of(1.0f, -0x1p24f), pair_of(1.0f, 1.0f)) == 1.0f,
                        text("%s", table->name));
        // Denormals are zero: as operands, as an accumulator, as a result, between the two.
        REQUIRE_MESSAGE(dot(*table, 0.0f, pair_of(0.0f, tiny / 2), pair_of(0.0f, 0x1p100f)) == 0.0f,
                        text("%s", table->name));
        REQUIRE_MESSAGE(bits_of(dot(*table, float_of(1), 0, 0)) == 0, text("%s", table->name));
        REQUIRE_MESSAGE(bits_of(dot(*table, 0.0f, pair_of(0x1p-63f, 0.0f), pair_of(0x1p-64f, 0.0f))) == 0,
                        text("%s", table->name));
        REQUIRE_MESSAGE(dot(*table, -tiny, pair_of(0x1p-63f, 0x1p-63f), pair_of(0x1p-63f, 0x1p-64f)) == tiny,
                        text("%s", table->name));
        REQUIRE_MESSAGE(dot(*table, 0.0f, pair_of(infinity, 1.0f), pair_of(1.0f, 1.0f)) == infinity,
                        text("%s", table->name));
        REQUIRE_MESSAGE(std::isnan(dot(*table, 0.0f, pair_of(infinity, 1.0f), 0)), text("%s", table->name));
    }
}

TEST_CASE("every set in use multiplies as defined") {
    const std::vector<const KernelTable*> used = tables();
    REQUIRE(used.front() == &scalar_table());
    for (const KernelTable* table : used) REQUIRE_MESSAGE(multiplies_bf16_as_defined(*table), text("%s", table->name));
    for (const KernelTable* table : this_machine().rejected) {
        REQUIRE_MESSAGE(!multiplies_bf16_as_defined(*table), text("%s", table->name));
        REQUIRE_MESSAGE(std::count(used.begin(), used.end(), table) == 0, text("%s", table->name));
    }
}

TEST_CASE("a set that multiplies otherwise is noticed") {
    REQUIRE(multiplies_bf16_as_defined(table_with<right>()));
    REQUIRE(!multiplies_bf16_as_defined(table_with<even_first>()));
    REQUIRE(!multiplies_bf16_as_defined(table_with<products_first>()));
    REQUIRE(!multiplies_bf16_as_defined(table_with<rounded_once>()));
    REQUIRE(!multiplies_bf16_as_defined(table_with<with_denormals>()));
    REQUIRE(!multiplies_bf16_as_defined(table_with<away_from_even>()));
}

}  // namespace hotseat::tests
