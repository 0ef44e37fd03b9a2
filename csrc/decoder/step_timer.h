// Where the time of steps goes, by kind of work. Off by default: then it costs
// one test of a flag at the end of each region.
#pragma once
#include <array>
#include <chrono>

namespace hotseat {

enum class Work : int {
    pack,       // norms, merging of attention partitions, rotation and rounding of rows
    linear,     // multiplications of the layers
    rope,       // rotary embedding and writing keys and values
    attention,  // over the partitions of the KV cache
    head,       // multiplication that gives the logits
    sampling,   // tokens and log-probabilities out of logits
    other,      // planning, embedding, waiting for the pool
};
inline constexpr int kNumWorks = 7;
inline constexpr const char* kWorkNames[kNumWorks] = {"pack", "linear",   "rope", "attention",
                                                      "head", "sampling", "other"};

// Used by one thread, which sees the end of every region.
class StepTimer {
public:
    // Switching on forgets what was counted.
    void enable(bool is_enabled) {
        is_enabled_ = is_enabled;
        if (is_enabled) seconds_ = {};
    }
    void start() {
        if (is_enabled_) last_ = Clock::now();
    }
    // What was done since the last call was `work`.
    void count(Work work) {
        if (!is_enabled_) return;
        const Clock::time_point now = Clock::now();
        seconds_[static_cast<int>(work)] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }
    const std::array<double, kNumWorks>& seconds() const { return seconds_; }

private:
    using Clock = std::chrono::steady_clock;
    bool is_enabled_ = false;
    Clock::time_point last_{};
    std::array<double, kNumWorks> seconds_{};
};

}  // namespace hotseat
