#define HOTSEAT_ISA avx2
#define HOTSEAT_AVX2
#include "kernels/all.h"
#include "simd/avx2.h"

namespace hotseat {
const KernelTable& avx2_table() {
    static constexpr KernelTable table = avx2::make_table("avx2");
    return table;
}
}  // namespace hotseat
