#include "decoder/machine.h"

#include <cmath>
#include <cstring>
#include <iterator>

#include "decoder/denormals.h"

namespace hotseat {

namespace {

constexpr int kLanes = 16, kNumCases = 2048;

// Zeros, ones, the smallest and largest normal, denormals, infinity, NaN, and values next to a power of two.
constexpr uint16_t kSpecial[] = {0x0000, 0x8000, 0x3f80, 0xbf80, 0x0080, 0x8081, 0x807f, 0x007f, 0x0001, 0x8001,
                                 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x3f81, 0x3fff, 0x2000, 0x1fff, 0x1f80};

// Numbers that are the same everywhere (xorshift).
class Cases {
public:
    // Two bf16 values.
    uint32_t pair() { return value() | static_cast<uint32_t>(value()) << 16; }
    float accumulator() {
        const uint32_t random = next();
        switch (next() % 4) {
            case 0:
                return from_bits(random);
            case 1:
                return from_bits(random & 0x80ffffff);  // denormal or nearly
            case 2:
                return from_bits(random & 0x83ffffff);
            default:
                return from_bits(static_cast<uint32_t>(value()) << 16);
        }
    }

private:
    uint16_t value() {
        const uint32_t random = next();
        switch (next() % 4) {
            case 0:
                return kSpecial[random % std::size(kSpecial)];
            case 1:
                return static_cast<uint16_t>((random & 0x807f) | (60 + (random >> 16) % 10) << 7);  // tiny products
            case 2:
                return static_cast<uint16_t>((random & 0x80ff) | 0x3f00);  // around one: ties and cancellation
            default:
                return static_cast<uint16_t>(random);
        }
    }
    uint32_t next() {
        state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
        return static_cast<uint32_t>(state_ >> 32);
    }
    static float from_bits(uint32_t bits) {
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    }

    uint64_t state_ = 88172645463325252u;
};

bool is_same(float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b)); }

void add(Machine& machine, const KernelTable& table) {
    (multiplies_bf16_as_defined(table) ? machine.tables : machine.rejected).push_back(&table);
}

}  // namespace

bool multiplies_bf16_as_defined(const KernelTable& table) {
    const DenormalsAreZero scope;
    Cases cases;
    float acc[kLanes], expected[kLanes], actual[kLanes];
    uint32_t a[kLanes], b[kLanes];
    for (int i = 0; i < kNumCases; ++i) {
        for (int lane = 0; lane < kLanes; ++lane)
            acc[lane] = cases.accumulator(), a[lane] = cases.pair(), b[lane] = cases.pair();
        scalar_table().dot_bf16(acc, a, b, expected);
        table.dot_bf16(acc, a, b, actual);
        for (int lane = 0; lane < kLanes; ++lane)
            if (!is_same(expected[lane], actual[lane])) return false;
    }
    return true;
}

const Machine& this_machine() {
    static const Machine machine = [] {
        Machine found{.tables = {&scalar_table()}, .rejected = {}};
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
            add(found, avx2_table());
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512vnni")) {
            add(found, avx512_table());
            if (__builtin_cpu_supports("avx512bf16")) add(found, avx512bf16_table());
        }
#endif
        return found;
    }();
    return machine;
}

}  // namespace hotseat
