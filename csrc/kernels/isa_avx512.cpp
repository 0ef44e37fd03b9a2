#define HOTSEAT_ISA avx512
#define HOTSEAT_AVX512
#include "kernels/all.h"
#include "simd/avx512.h"

namespace hotseat {
const KernelTable& avx512_table() {
    static constexpr KernelTable table = avx512::make_table("avx512");
    return table;
}
}  // namespace hotseat
