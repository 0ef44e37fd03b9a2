// The native tests: every kernel of every instruction set that this machine has
// against the scalar one and against plain formulas, the pool of threads, the
// sampler, the whole decoder.
//
//     cmake -G Ninja -B build/native -DHOTSEAT_BUILD_PYTHON=OFF -DHOTSEAT_BUILD_TESTS=ON [-DHOTSEAT_SANITIZE=...]
//     ninja -C build/native hotseat_tests && build/native/hotseat_tests [part of a test's name]
//
// They run clean with HOTSEAT_SANITIZE=address,undefined and, for data races,
// with HOTSEAT_SANITIZE=thread.
#include <chrono>

#include "decoder/denormals.h"
#include "decoder/machine.h"
#include "tests/check.h"

namespace hotseat::tests {

std::vector<Test>& all_tests() {
    static std::vector<Test> tests;
    return tests;
}

std::vector<const KernelTable*> tables() { return this_machine().tables; }

static int run(const char* filter) {
    int num_run = 0, num_failed = 0;
    for (const Test& test : all_tests()) {
        if (std::strstr(test.name, filter) == nullptr) continue;
        ++num_run;
        const auto start = std::chrono::steady_clock::now();
        try {
            const DenormalsAreZero scope;  // as in a step
            test.run();
            const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
            std::printf("ok      %s (%.2f s)\n", test.name, seconds.count());
        } catch (const Failure& failure) {
            ++num_failed;
            std::printf("FAILED  %s\n        %s\n", test.name, failure.what());
        }
        std::fflush(stdout);
    }
    std::printf("%d of %d passed;", num_run - num_failed, num_run);
    for (const KernelTable* table : tables()) std::printf(" %s", table->name);
    std::printf("\n");
    return num_failed > 0 || num_run == 0 ? 1 : 0;
}

}  // namespace hotseat::tests

int main(int argc, char** argv) { return hotseat::tests::run(argc > 1 ? argv[1] : ""); }
