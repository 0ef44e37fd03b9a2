// The native tests: every kernel of every instruction set that this machine has
// against the scalar one and against plain formulas, the pool of threads, the
// sampler, the whole decoder.
//
//     cmake -G Ninja -B build/native -DHOTSEAT_BUILD_PYTHON=OFF -DHOTSEAT_BUILD_TESTS=ON [-DHOTSEAT_SANITIZE=...]
//     ninja -C build/native hotseat_tests && build/native/hotseat_tests [--test-case='*part of a name*']
//
// They run clean with HOTSEAT_SANITIZE=address,undefined and, for data races,
// with HOTSEAT_SANITIZE=thread.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include "decoder/denormals.h"
#include "decoder/machine.h"
#include "tests/check.h"

namespace hotseat::tests {

std::vector<const KernelTable*> tables() { return this_machine().tables; }

}  // namespace hotseat::tests

int main(int argc, char** argv) {
    doctest::Context context(argc, argv);
    std::printf("instruction sets:");
    for (const hotseat::KernelTable* table : hotseat::tests::tables()) std::printf(" %s", table->name);
    std::printf("\n");
    const hotseat::DenormalsAreZero scope;  // as in a step
    return context.run();
}
