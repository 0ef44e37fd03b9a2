#define HOTSEAT_ISA avx512bf16
#define HOTSEAT_AVX512
#define HOTSEAT_AVX512BF16
// clang-format off
#include "simd/avx512.h"
#include "kernels/all.h"
// clang-format on

namespace hotseat {

const KernelTable& avx512bf16_table() {
    static constexpr KernelTable table = avx512bf16::make_table("avx512bf16");
    return table;
}

}  // namespace hotseat
