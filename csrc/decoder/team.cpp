#include "decoder/team.h"

#include "decoder/denormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hotseat {

namespace {

// Spins are long enough to cover the usual wait, short enough that a core that
// somebody else needs is soon given up.
constexpr int kPhaseSpins = 1500;
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

Team::Team(int num_threads) : num_threads_(num_threads), members_(num_threads), gate_(kClosed) {
    open_phase(0);
    for (int member = 1; member < num_threads; ++member) threads_.emplace_back([this, member] { serve(member); });
}

Team::~Team() {
    closing_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Team::run_erased(Entry entry, void* context) {
    entry_ = entry;
    context_ = context;
    first_phase_ = members_[0].phase;
    gate_.store(0, std::memory_order_release);
    if (num_threads_ > 1) {
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
    }
    {
        const DenormalsAreZero scope;
        entry(context, 0);
    }
    gate_.fetch_or(kClosed, std::memory_order_acq_rel);
    wait_for(gate_, kPhaseSpins, [](uint32_t gate) { return gate == kClosed; });
}

bool Team::enter() {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    while (!(gate & kClosed))
        if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
    return false;
}

void Team::leave() {
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) gate_.notify_all();
}

void Team::serve(int member) {
    const DenormalsAreZero scope;
    uint32_t seen = 0;
    while (true) {
        wait_for(epoch_, kIdleSpins, [&](uint32_t epoch) { return epoch != seen; });
        seen = epoch_.load(std::memory_order_acquire);
        if (closing_.load(std::memory_order_relaxed)) return;
        if (!enter()) continue;
        members_[member].phase = first_phase_;
        entry_(context_, member);
        leave();
    }
}

void Team::open_phase(uint32_t phase) {
    Slot& slot = slots_[phase % kSlots];
    slot.done.store(0, std::memory_order_relaxed);
    for (Member& member : members_)
        member.next[phase % kSlots].store(static_cast<uint64_t>(phase) << 32, std::memory_order_release);
    open_phase_.store(phase, std::memory_order_release);
}

// The next item of a member's share of the phase, or -1 when all are taken.
int Team::take(uint32_t phase, int total, int owner) {
    const int first = share_start(total, owner);
    const uint32_t count = share_start(total, owner + 1) - first;
    std::atomic<uint64_t>& next = members_[owner].next[phase % kSlots];
    uint64_t value = next.load(std::memory_order_acquire);
    while (value >> 32 == phase && static_cast<uint32_t>(value) < count)
        if (next.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel))
            return first + static_cast<int>(static_cast<uint32_t>(value));
    return -1;
}

void Team::finish(uint32_t phase, int total, int num_done) {
    const uint32_t before = slots_[phase % kSlots].done.fetch_add(num_done, std::memory_order_acq_rel);
    if (before + num_done == static_cast<uint32_t>(total)) {
        open_phase(phase + 1);
        open_phase_.notify_all();
    }
}

void Team::wait_until_over(uint32_t phase) {
    wait_for(open_phase_, kPhaseSpins, [phase](uint32_t open) { return static_cast<int32_t>(open - phase) > 0; });
}

}  // namespace hotseat
