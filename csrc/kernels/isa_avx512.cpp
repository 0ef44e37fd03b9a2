#define HOTSEAT_ISA avx512
#define HOTSEAT_AVX512
// clang-format off
#include "simd/avx512.h"
#include "kernels/all.h"
// clang-format on

namespace hotseat {

const KernelTable& avx512_table() {
    static constexpr KernelTable table = avx512::make_table("avx512");
    return table;
}

}  // namespace hotseat
