#define HOTSEAT_ISA avx2
#define HOTSEAT_AVX2
// clang-format off
#include "simd/avx2.h"
#include "kernels/all.h"
// clang-format on

namespace hotseat {

const KernelTable& avx2_table() {
    static constexpr KernelTable table = avx2::make_table("avx2");
    return table;
}

}  // namespace hotseat
