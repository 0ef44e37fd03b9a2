// A team of threads that runs one step together. The caller is member 0; the
// others sleep between steps.
//
// Theory of operation. A step is a sequence of phases, a phase a number of
// items, and every member walks through the same sequence. Each member has a
// share of the items, takes them one by one, and then helps the others with
// theirs; a phase is over when its items are done, not when all members have
// come by: a thread that loses its core for a while delays the others only by
// the item that it holds, and finds the phases it missed already over. A member
// that has not woken up when the step ends misses that step. Only at the very
// end does the caller wait for those who are inside.
//
// Shares are the same for equal totals, so what a core wrote in one phase is
// often still near it in the next, and counters are contended at the end of a
// phase only. That matters where cores are far apart: a line that another core
// has written takes as long as one from memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace hotseat {

class Team {
public:
    explicit Team(int num_threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return num_threads_; }

    // Run `body(member)` on every member at once and return when all have ended.
    // Called from one thread at a time. Inside, denormals are zero.
    template <class Body>
    void run(Body&& body) {
        run_erased([](void* context, int member) { (*static_cast<std::remove_reference_t<Body>*>(context))(member); },
                   &body);
    }

    // Inside run: one phase. Share out items [0, total) and return when all are
    // done. Every member calls it alike.
    template <class Item>
    void for_each(int total, int member, Item&& item) {
        if (total <= 0) return;
        const uint32_t phase = members_[member].phase++;
        int num_done = 0;
        for (int i = 0; i < num_threads_; ++i) {
            const int owner = member + i < num_threads_ ? member + i : member + i - num_threads_;
            for (int taken = take(phase, total, owner); taken >= 0; taken = take(phase, total, owner)) {
                item(taken, member);
                ++num_done;
            }
        }
        if (num_done > 0) finish(phase, total, num_done);
        wait_until_over(phase);
    }

private:
    using Entry = void (*)(void*, int);
    static constexpr int kSlots = 4;  // phases whose counters are apart; two would do

    // Items of a phase that are done.
    struct alignas(64) Slot {
        std::atomic<uint32_t> done{0};
    };
    struct alignas(64) Member {
        uint32_t phase = 0;
        // Next item of the member's share of a phase, with the phase in the upper
        // half so that a latecomer cannot touch a later phase's.
        alignas(64) std::atomic<uint64_t> next[kSlots]{};
    };

    void run_erased(Entry entry, void* context);
    void serve(int member);
    bool enter();
    void leave();
    void open_phase(uint32_t phase);
    int share_start(int total, int member) const {
        return static_cast<int>((static_cast<int64_t>(total) * member + num_threads_ - 1) / num_threads_);
    }
    int take(uint32_t phase, int total, int owner);
    void finish(uint32_t phase, int total, int num_done);
    void wait_until_over(uint32_t phase);

    const int num_threads_;
    Slot slots_[kSlots];
    std::vector<Member> members_;
    alignas(64) std::atomic<uint32_t> open_phase_{0};  // all phases before it are over
    alignas(64) std::atomic<uint32_t> epoch_{0};       // one per run
    alignas(64) std::atomic<uint32_t> gate_;           // members inside, and whether nobody
                                                       // may enter
    std::atomic<bool> closing_{false};
    Entry entry_ = nullptr;
    void* context_ = nullptr;
    uint32_t first_phase_ = 0;  // of this run
    std::vector<std::thread> threads_;
};

}  // namespace hotseat
