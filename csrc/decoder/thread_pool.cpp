#include "decoder/thread_pool.h"

#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "decoder/denormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hotseat {

namespace {

// Spins are long enough to cover the usual wait, short enough that a core that
// somebody else needs is soon given up.
constexpr int kRegionSpins = 1500;
constexpr int kIdleSpins = 300;
constexpr uint32_t kClosed = 1u << 31;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Wait until `is_over(value)`: spin first, then sleep in the kernel until the
// value changes.
template <class IsOver>
void wait_for(const std::atomic<uint32_t>& value, int spins, IsOver&& is_over) {
    for (int i = 0; i < spins; ++i) {
        if (is_over(value.load(std::memory_order_acquire))) return;
        pause();
    }
    for (uint32_t seen = value.load(std::memory_order_acquire); !is_over(seen);
         seen = value.load(std::memory_order_acquire))
        value.wait(seen, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), process_(getpid()), workers_(num_threads), gate_(kClosed) {
    open_region(0);
    for (int worker = 1; worker < num_threads; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
}

ThreadPool::~ThreadPool() {
    if (getpid() != process_) {
        for (std::thread& thread : threads_) thread.detach();
        return;
    }
    closing_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_erased(Entry entry, void* context) {
    if (num_threads_ > 1 && getpid() != process_)
        throw std::runtime_error("a forked process has no threads to compute with: load the model after the fork");
    entry_ = entry;
    context_ = context;
    first_region_ = workers_[0].region;
    gate_.store(0, std::memory_order_release);
    if (num_threads_ > 1) {
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
    }
    {
        const DenormalsAreZero scope;
        call(0);
    }
    gate_.fetch_or(kClosed, std::memory_order_acq_rel);
    wait_for(gate_, kRegionSpins, [](uint32_t gate) { return gate == kClosed; });
    // A body that threw between regions has left before the others did.
    workers_[0].region = open_region_.load(std::memory_order_acquire);
    if (has_failed_.exchange(false, std::memory_order_acq_rel)) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::call(int worker) noexcept {
    try {
        entry_(context_, worker);
    } catch (...) {
        fail();
    }
}

void ThreadPool::fail() noexcept {
    if (!has_failed_.exchange(true, std::memory_order_acq_rel)) error_ = std::current_exception();
}

bool ThreadPool::enter() {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    while (!(gate & kClosed))
        if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
    return false;
}

void ThreadPool::leave() {
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) gate_.notify_all();
}

void ThreadPool::serve(int worker) {
    const DenormalsAreZero scope;
    uint32_t seen = 0;
    while (true) {
        wait_for(epoch_, kIdleSpins, [&](uint32_t epoch) { return epoch != seen; });
        seen = epoch_.load(std::memory_order_acquire);
        if (closing_.load(std::memory_order_relaxed)) return;
        if (!enter()) continue;
        workers_[worker].region = first_region_;
        call(worker);
        leave();
    }
}

void ThreadPool::open_region(uint32_t region) {
    Slot& slot = slots_[region % kSlots];
    slot.done.store(0, std::memory_order_relaxed);
    for (Worker& worker : workers_)
        worker.next[region % kSlots].store(static_cast<uint64_t>(region) << 32, std::memory_order_release);
    open_region_.store(region, std::memory_order_release);
}

// The next item of a worker's share of the region, or -1 when all are taken.
int ThreadPool::take(uint32_t region, int total, int owner) {
    const int first = share_start(total, owner);
    const uint32_t count = share_start(total, owner + 1) - first;
    std::atomic<uint64_t>& next = workers_[owner].next[region % kSlots];
    uint64_t value = next.load(std::memory_order_acquire);
    while (value >> 32 == region && static_cast<uint32_t>(value) < count)
        if (next.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel))
            return first + static_cast<int>(static_cast<uint32_t>(value));
    return -1;
}

void ThreadPool::finish(uint32_t region, int total, int num_done) {
    const uint32_t before = slots_[region % kSlots].done.fetch_add(num_done, std::memory_order_acq_rel);
    if (before + num_done == static_cast<uint32_t>(total)) {
        open_region(region + 1);
        open_region_.notify_all();
    }
}

void ThreadPool::wait_until_over(uint32_t region) {
    wait_for(open_region_, kRegionSpins, [region](uint32_t open) { return static_cast<int32_t>(open - region) > 0; });
}

}  // namespace hotseat
