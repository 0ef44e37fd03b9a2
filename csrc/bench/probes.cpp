#include "bench/probes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>

namespace hotseat {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReadItem = size_t{1} << 20;
constexpr int kStateFloats = 1024;  // more than all accumulators of any instruction set
constexpr int kReadItems = 32;
constexpr double kPeakItemSeconds = 1e-4;
constexpr int kPeakItems = 8;  // a thread

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Call `measured(worker)` on all workers of the pool and return the seconds that it took. They begin together: a
// thread that still wakes up would otherwise make the others look slow.
template <class Measured>
double time_together(ThreadPool& pool, Measured&& measured) {
    std::atomic<int> arrived{0};
    std::atomic<bool> may_begin{false};
    Clock::time_point start, end;
    pool.run([&](int worker) {
        pool.for_each(pool.size(), worker, [&](int, int) {
            if (arrived.fetch_add(1) + 1 == pool.size()) {
                start = Clock::now();
                may_begin.store(true, std::memory_order_release);
            }
            while (!may_begin.load(std::memory_order_acquire)) {
            }
        });
        measured(worker);
        if (worker == 0) end = Clock::now();
    });
    return std::chrono::duration<double>(end - start).count();
}

// Numbers in [-1, 1) that look random.
void fill(float* values, size_t count) {
    uint32_t state = 2463534242u;
    for (size_t i = 0; i < count; ++i) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        values[i] = static_cast<float>(static_cast<int32_t>(state)) * 4.656612873e-10f;
    }
}

}  // namespace

LimitProbe::LimitProbe(int num_threads, size_t buffer_bytes)
    : pool_(num_threads),
      buffer_(std::max(buffer_bytes / kReadItem, size_t{1}) * kReadItem),
      results_(static_cast<size_t>(num_threads) * kStateFloats, 0.5f) {
    const int num_items = static_cast<int>(buffer_.size() / kReadItem);
    pool_.run([&](int worker) {
        pool_.for_each(num_items, worker, [&](int item, int) {
            fill(reinterpret_cast<float*>(buffer_.as<uint8_t>() + item * kReadItem), kReadItem / sizeof(float));
        });
    });
}

double LimitProbe::read_bandwidth(const KernelTable& kernels) {
    const int num_items = static_cast<int>(buffer_.size() / kReadItem), first = next_item_;
    const int count = std::min(num_items, kReadItems);
    next_item_ = (first + count) % num_items;
    const double seconds = time_together(pool_, [&](int worker) {
        pool_.for_each(count, worker, [&](int i, int who) {
            const size_t item = (first + i) % num_items;
            results_[who] += kernels.read_memory(buffer_.as<uint8_t>() + item * kReadItem, kReadItem);
        });
    });
    return static_cast<double>(count) * kReadItem / seconds;
}

double LimitProbe::peak(const KernelTable& kernels, WeightMode mode) {
    int64_t rounds = 1;
    for (double seconds = 0.0; seconds < kPeakItemSeconds; rounds *= 2) {
        const Clock::time_point start = Clock::now();
        kernels.multiply_in_registers(mode, rounds, results_.data());
        seconds = seconds_since(start);
    }
    std::fill(results_.begin(), results_.end(), 0.5f);
    std::vector<double> operations(pool_.size());
    const double seconds = time_together(pool_, [&](int worker) {
        pool_.for_each(kPeakItems * pool_.size(), worker, [&](int, int who) {
            float* state = results_.data() + static_cast<size_t>(who) * kStateFloats;
            operations[who] += static_cast<double>(kernels.multiply_in_registers(mode, rounds, state));
        });
    });
    double sum = 0.0;
    for (double each : operations) sum += each;
    return sum / seconds;
}

LinearProbe::LinearProbe(const KernelTable& packer, WeightMode mode, int in_features,
                         const std::vector<StoredMatrix>& sources, Epilogue epilogue, int num_copies, int max_rows,
                         int num_threads)
    : pool_(num_threads), epilogue_(epilogue), max_rows_(max_rows) {
    const bool is_swiglu = epilogue == Epilogue::swiglu;
    if (sources.empty() || in_features < 1 || num_copies < 1 || max_rows < 1 || (is_swiglu && sources.size() != 2))
        throw std::invalid_argument("sizes must be positive, and swiglu has gate and up");
    for (int i = 0; i < num_copies; ++i)
        copies_.emplace_back(packer, pool_, arena_, mode, in_features, sources, is_swiglu);

    const Linear& linear = copies_.front();
    memory_ = PackedMemory(max_rows, linear.packed_row_bytes());
    rows_ = memory_.rows();
    out_stride_ = is_swiglu ? linear.num_outputs() / 2 : linear.num_outputs();
    out_ = Memory(max_rows * out_stride_ * sizeof(float));
    std::vector<float> numbers(static_cast<size_t>(in_features) + max_rows), row(static_cast<size_t>(in_features) + 16);
    fill(numbers.data(), numbers.size());
    for (int i = 0; i < max_rows; ++i) {
        std::copy_n(numbers.begin() + i, in_features, row.begin());
        linear.pack_row(packer, row.data(), rows_, i);
    }
}

double LinearProbe::seconds(const KernelTable& kernels, int rows, int count) {
    if (rows < 1 || rows > max_rows_ || count < 1) throw std::invalid_argument("rows or count out of range");
    const int num_items = copies_.front().num_items(rows);
    const size_t first = next_copy_;
    next_copy_ = (first + count) % copies_.size();
    const double seconds = time_together(pool_, [&](int worker) {
        for (int i = 0; i < count; ++i) {
            const Linear& linear = copies_[(first + i) % copies_.size()];
            pool_.for_each(num_items, worker, [&](int item, int) {
                linear.compute(kernels, rows_, rows, out_.as<float>(), out_stride_, epilogue_, item);
            });
        }
    });
    return seconds / count;
}

}  // namespace hotseat
