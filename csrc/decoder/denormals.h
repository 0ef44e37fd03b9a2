// Denormals count as zero while this lives, and results too small to be normal become zero: what the bf16 instructions
// of x86 do always, so that all others do the same. Rounding and exceptions stay as they are.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hotseat {

class DenormalsAreZero {
public:
    DenormalsAreZero() : before_(read()) { write(before_ | kFlush); }
    ~DenormalsAreZero() { write(before_); }
    DenormalsAreZero(const DenormalsAreZero&) = delete;
    DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

private:
#if defined(__x86_64__)
    using Word = uint32_t;
    static constexpr Word kFlush = 0x8040;  // of results, of operands
    static Word read() { return _mm_getcsr(); }
    static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
    using Word = uint64_t;
    static constexpr Word kFlush = 1u << 24;
    static Word read() {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(Word word) { asm volatile("msr fpcr, %0" ::"r"(word)); }
#else
    using Word = uint32_t;
    static constexpr Word kFlush = 0;
    static Word read() { return 0; }
    static void write(Word) {}
#endif

    const Word before_;
};

}  // namespace hotseat
