#define HOTSEAT_ISA avx512bf16
#define HOTSEAT_AVX512
#define HOTSEAT_AVX512BF16
#include "kernels/all.h"
#include "simd/avx512.h"

namespace hotseat {
const KernelTable& avx512bf16_table() {
    static constexpr KernelTable table = avx512bf16::make_table("avx512bf16");
    return table;
}
}  // namespace hotseat
