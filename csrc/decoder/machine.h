// Which instruction sets this machine has, and whether they compute as they should.
#pragma once
#include <vector>

#include "kernels/table.h"

namespace hotseat {

struct Machine {
    std::vector<const KernelTable*> tables;    // the scalar one first, the best one last
    std::vector<const KernelTable*> rejected;  // that it has as well, but that would break the promise of same bits
};

// Found out once.
const Machine& this_machine();

// Whether a set's bf16 products are those of the scalar set, to the bit, in a fixed set of hard cases: denormal
// operands and results, ties, overflow, values of any size, infinities. vdpbf16ps is specified in all this, but it is
// the one instruction here whose rounding is its own.
bool multiplies_bf16_as_defined(const KernelTable& table);

}  // namespace hotseat
