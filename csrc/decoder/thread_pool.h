// A pool of threads that runs one step together. The caller is worker 0; the
// others sleep between steps.
//
// Theory of operation. A step is a sequence of regions, a region a number of
// items, and every worker walks through the same sequence. Each worker has a
// share of the items, takes them one by one, and then helps the others with
// theirs; a region is over when its items are done, not when all workers have
// come by: a thread that loses its core for a while delays the others only by
// the item that it holds, and finds the regions it missed already over. A worker
// that has not woken up when the step ends misses that step. Only at the very
// end does the caller wait for those who are inside.
//
// Shares are the same for equal totals, so what a core wrote in one region is
// often still near it in the next, and counters are contended at the end of a
// region only. That matters where cores are far apart: a line that another core
// has written takes as long as one from memory.
//
// An exception never leaves a thread. The first one is kept, items that are left
// are counted as done but skipped so that every region still ends, and the caller
// of the run gets it when all are out; the pool is then as good as before.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace hotseat {

class ThreadPool {
public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return num_threads_; }

    // Run `body(worker)` on every worker at once and return when all have ended.
    // Called from one thread at a time. Inside, denormals are zero. Rethrows the
    // first exception of any worker.
    template <class Body>
    void run(Body&& body) {
        run_erased([](void* context, int worker) { (*static_cast<std::remove_reference_t<Body>*>(context))(worker); },
                   &body);
    }

    // Inside run: one region. Share out items [0, total) and return when all are
    // done. Every worker calls it alike.
    template <class Item>
    void for_each(int total, int worker, Item&& item) {
        if (total <= 0) return;
        const uint32_t region = workers_[worker].region++;
        int num_done = 0;
        for (int i = 0; i < num_threads_; ++i) {
            const int owner = worker + i < num_threads_ ? worker + i : worker + i - num_threads_;
            for (int taken = take(region, total, owner); taken >= 0; taken = take(region, total, owner)) {
                ++num_done;
                if (has_failed_.load(std::memory_order_relaxed)) continue;
                try {
                    item(taken, worker);
                } catch (...) {
                    fail();
                }
            }
        }
        if (num_done > 0) finish(region, total, num_done);
        wait_until_over(region);
    }

private:
    using Entry = void (*)(void*, int);
    static constexpr int kSlots = 4;  // regions whose counters are apart; two would do

    // Items of a region that are done.
    struct alignas(64) Slot {
        std::atomic<uint32_t> done{0};
    };
    struct alignas(64) Worker {
        uint32_t region = 0;
        // Next item of the worker's share of a region, with the region in the upper
        // half so that a latecomer cannot touch a later region's.
        alignas(64) std::atomic<uint64_t> next[kSlots]{};
    };

    void run_erased(Entry entry, void* context);
    void serve(int worker);
    void call(int worker) noexcept;
    void fail() noexcept;
    bool enter();
    void leave();
    void open_region(uint32_t region);
    int share_start(int total, int worker) const {
        return static_cast<int>((static_cast<int64_t>(total) * worker + num_threads_ - 1) / num_threads_);
    }
    int take(uint32_t region, int total, int owner);
    void finish(uint32_t region, int total, int num_done);
    void wait_until_over(uint32_t region);

    const int num_threads_;
    const pid_t process_;  // whose threads they are: a forked child has none of them
    Slot slots_[kSlots];
    std::vector<Worker> workers_;
    alignas(64) std::atomic<uint32_t> open_region_{0};  // all regions before it are over
    alignas(64) std::atomic<uint32_t> epoch_{0};        // one per run
    alignas(64) std::atomic<uint32_t> gate_;            // workers inside, and whether nobody
                                                        // may enter
    std::atomic<bool> closing_{false};
    std::atomic<bool> has_failed_{false};
    std::exception_ptr error_;  // of the worker that set has_failed_; read when all are out
    Entry entry_ = nullptr;
    void* context_ = nullptr;
    uint32_t first_region_ = 0;  // of this run
    std::vector<std::thread> threads_;
};

}  // namespace hotseat
