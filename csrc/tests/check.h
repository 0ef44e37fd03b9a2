// What the tests share beside doctest: the kernels of this machine, random values, and buffers that notice who
// writes (or, under the address sanitizer, reads) beside them.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/table.h"

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace hotseat::tests {

// A line for REQUIRE_MESSAGE, which makes it only when the condition does not hold.
template <class... Args>
std::string text(const char* format, Args... args) {
    char line[512];
    std::snprintf(line, sizeof(line), format, args...);
    return line;
}

// Tables of this machine, the scalar one first.
std::vector<const KernelTable*> tables();

class Random {
public:
    explicit Random(uint32_t seed) : engine_(seed) {}
    float normal(float scale = 1.0f) { return std::normal_distribution<float>(0.0f, scale)(engine_); }
    int below(int limit) { return static_cast<int>(engine_() % static_cast<uint32_t>(limit)); }
    uint8_t byte() { return static_cast<uint8_t>(engine_()); }

private:
    std::mt19937 engine_;
};

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
// The same bits, or both NaN.
inline bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }
inline bool close(double a, double b, double tolerance) { return std::fabs(a - b) <= tolerance; }
inline float bf16_value(uint16_t word) {
    const uint32_t bits = static_cast<uint32_t>(word) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// n values between two guards. Writes are found by `check`, reads by the address
// sanitizer, which the guards are broken for. `slack` values behind the last
// one may be read.
template <class T>
class Guarded {
public:
    explicit Guarded(size_t n, T value = T{}, size_t slack = 0)
        : n_(n), slack_(slack), bytes_(num_bytes(n + slack), kPattern) {
        std::fill_n(data(), n + slack, value);
        nan_check();
    }
    Guarded(const Guarded& other) : Guarded(other.n_, T{}, other.slack_) {
        std::copy_n(other.data(), n_ + slack_, data());
    }
    Guarded& operator=(const Guarded&) = delete;
    ~Guarded() { clear_nan_check(); }

    T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuard); }
    const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + kGuard); }
    T& operator[](size_t i) { return data()[i]; }
    const T& operator[](size_t i) const { return data()[i]; }
    size_t size() const { return n_; }

    // Nobody wrote into the guards.
    void check() {
        clear_nan_check();
        for (size_t i = 0; i < kGuard; ++i) {
            REQUIRE_MESSAGE(bytes_[i] == kPattern, text("%zu bytes before the buffer", kGuard - i));
            REQUIRE_MESSAGE(bytes_[bytes_.size() - 1 - i] == kPattern,
                            text("%zu bytes behind the buffer", kGuard - 1 - i));
        }
        nan_check();
    }

private:
    static size_t num_bytes(size_t n) {
        if (n > (size_t{1} << 30)) throw std::length_error("a buffer of a test");  // also tells the compiler
        return 2 * kGuard + n * sizeof(T);
    }
    void nan_check() {
        ASAN_POISON_MEMORY_REGION(bytes_.data(), kGuard);
        ASAN_POISON_MEMORY_REGION(data() + n_ + slack_, kGuard);
    }
    void clear_nan_check() { ASAN_UNPOISON_MEMORY_REGION(bytes_.data(), bytes_.size()); }

    static constexpr size_t kGuard = 128;
    static constexpr uint8_t kPattern = 0xA5;
    size_t n_, slack_;
    std::vector<uint8_t> bytes_;
};

inline Guarded<float> random_floats(Random& random, size_t n, float scale = 1.0f) {
    Guarded<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = random.normal(scale);
    return values;
}

template <class T>
void check_same(Guarded<T>& actual, Guarded<T>& expected, const char* table, const char* what, int size) {
    actual.check();
    expected.check();
    for (size_t i = 0; i < actual.size(); ++i) {
        if constexpr (std::is_same_v<T, float>)
            REQUIRE_MESSAGE(same(actual[i], expected[i]),
                            text("%s: %s of %d at %zu: %.9g, scalar %.9g", table, what, size, i,
                                 static_cast<double>(actual[i]), static_cast<double>(expected[i])));
        else
            REQUIRE_MESSAGE(actual[i] == expected[i], text("%s: %s of %d at %zu", table, what, size, i));
    }
}

}  // namespace hotseat::tests
