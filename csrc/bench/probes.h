// What the benchmarks measure below Python: the limits of the machine, and
// single multiplications as a step does them, with weights that are not in any
// cache.
#pragma once
#include <vector>

#include "decoder/linear.h"
#include "decoder/memory.h"
#include "decoder/thread_pool.h"
#include "kernels/table.h"

namespace hotseat {

class LimitProbe {
public:
    // A buffer much larger than the caches makes `read_bandwidth` that of memory.
    LimitProbe(int num_threads, size_t buffer_bytes);

    // Bytes a second of all threads over the next part of the buffer: each call is short, so that on a machine with
    // other work some calls are undisturbed.
    double read_bandwidth(const KernelTable& kernels);
    // Operations (a multiplication and an addition are two) a second of all
    // threads with operands in registers.
    double peak(const KernelTable& kernels, WeightMode mode);

private:
    ThreadPool pool_;
    Memory buffer_;
    int next_item_ = 0;
    std::vector<float> results_;  // of each worker, so that nothing is optimised away
};

// Multiplications of random rows with `num_copies` copies of one matrix, taken in
// turns. With epilogue swiglu the sources are gate and up, else parts one below the other.
class LinearProbe {
public:
    LinearProbe(const KernelTable& packer, WeightMode mode, int in_features, const std::vector<StoredMatrix>& sources,
                Epilogue epilogue, int num_copies, int max_rows, int num_threads);

    // Packed bytes of one copy.
    size_t weight_bytes() const { return copies_.front().num_bytes(); }
    // Seconds a multiplication with the next `count` copies.
    double seconds(const KernelTable& kernels, int rows, int count);

private:
    ThreadPool pool_;
    Epilogue epilogue_;
    Arena arena_;
    std::vector<Linear> copies_;
    size_t next_copy_ = 0;
    int max_rows_;
    PackedMemory memory_;
    PackedRows rows_{};
    Memory out_;
    size_t out_stride_;
};

}  // namespace hotseat
