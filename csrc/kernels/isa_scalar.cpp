#define HOTSEAT_ISA scalar
#include "kernels/all.h"
#include "simd/scalar.h"

namespace hotseat {
const KernelTable& scalar_table() {
    static constexpr KernelTable table = scalar::make_table("scalar");
    return table;
}
}  // namespace hotseat
