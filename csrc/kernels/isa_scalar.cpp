#define HOTSEAT_ISA scalar
// clang-format off
#include "simd/scalar.h"
#include "kernels/all.h"
// clang-format on

namespace hotseat {

const KernelTable& scalar_table() {
    static constexpr KernelTable table = scalar::make_table("scalar");
    return table;
}

}  // namespace hotseat
