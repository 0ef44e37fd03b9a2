// The team of threads. Shared counters are plain integers on purpose: a phase's
// end must order them, which the thread sanitizer checks.
#include "decoder/team.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <memory>
#include <numeric>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

const int kTeamSizes[] = {1, 2, 3, 5, 16};  // more than there are cores, too

// Work that takes a while, without a clock.
unsigned busy(int rounds) {
    volatile unsigned sink = 0;
    for (int i = 0; i < rounds; ++i) sink = sink + 1;
    return sink;
}

// One run of `totals.size()` phases. Every item of a phase is done once, by one
// member, after all items of the phase before.
void check_run(Team& team, const std::vector<int>& totals, int rounds = 0) {
    std::vector<std::vector<int>> done(totals.size());
    for (size_t phase = 0; phase < totals.size(); ++phase) done[phase].assign(totals[phase], 0);
    std::atomic<int> num_too_early{0}, num_strangers{0};
    team.run([&](int member) {
        for (size_t phase = 0; phase < totals.size(); ++phase)
            team.for_each(totals[phase], member, [&](int item, int who) {
                if (who != member || who < 0 || who >= team.size()) ++num_strangers;
                busy(item + 1 == totals[phase] ? 10 * rounds : rounds);  // the others have to wait for the last
                ++done[phase][item];
                if (phase == 0) return;
                for (int count : done[phase - 1])
                    if (count != 1) ++num_too_early;
            });
    });
    CHECK(num_too_early == 0 && num_strangers == 0, "%d threads", team.size());
    for (size_t phase = 0; phase < totals.size(); ++phase)
        for (int count : done[phase]) CHECK(count == 1, "%d threads, phase %zu: %d times", team.size(), phase, count);
}

}  // namespace

TEST(denormals_are_zero_inside_a_run_alone) {
    const auto are_kept = [] {
        volatile float denormal = 1e-38f;
        denormal = denormal * 0.5f;
        return bits_of(denormal) != 0;  // a comparison might move past fesetenv
    };
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetenv(FE_DFL_ENV);  // tests run as a step does
    bool are_kept_outside = are_kept();
    std::atomic<int> num_kept{0};
    for (int size : kTeamSizes) {
        Team team(size);
        team.run([&](int member) {
            num_kept += are_kept();
            team.for_each(4 * size, member, [&](int, int) { num_kept += are_kept(); });
        });
        are_kept_outside = are_kept_outside && are_kept();
    }
    std::fesetenv(&before);
    CHECK(are_kept_outside && num_kept == 0, "%d kept inside", num_kept.load());
}

TEST(team_does_every_item_once_and_phases_in_order) {
    Random random(31);
    for (int size : kTeamSizes) {
        Team team(size);
        CHECK(team.size() == size);
        for (int run = 0; run < 200; ++run) {
            std::vector<int> totals(1 + random.below(8));
            for (int& total : totals) total = random.below(4) == 0 ? random.below(2) : random.below(40);
            check_run(team, totals, run % 2 * 1000);
        }
    }
}

TEST(team_shares_the_work) {
    for (int size : {2, 3}) {
        Team team(size);
        std::vector<int> num_done(size);  // each member counts its own
        // When the others wake up is up to the machine: soon, unless it is very busy.
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        const auto somebody_is_idle = [&] { return *std::min_element(num_done.begin(), num_done.end()) == 0; };
        while (somebody_is_idle() && std::chrono::steady_clock::now() < deadline)
            team.run([&](int member) {
                team.for_each(20, member, [&](int, int who) {
                    busy(2000);
                    ++num_done[who];
                });
            });
        for (int member = 0; member < size; ++member)
            CHECK(num_done[member] > 0, "member %d of %d never worked", member, size);
    }
}

TEST(team_survives_thousands_of_short_runs) {
    for (int size : kTeamSizes) {
        Team team(size);
        int64_t sum = 0;
        for (int run = 0; run < 3000; ++run) {
            std::vector<int> items(3);
            team.run([&](int member) {
                team.for_each(3, member, [&](int item, int) { items[item] = item + run; });
                team.for_each(1, member, [&](int, int) { sum += std::accumulate(items.begin(), items.end(), 0); });
            });
        }
        CHECK(sum == 3000LL * 3 + 3 * 2999LL * 3000 / 2, "%d threads", size);
    }
}

TEST(team_runs_without_phases_and_with_empty_phases) {
    for (int size : kTeamSizes) {
        Team team(size);
        std::atomic<int> num_members{0};
        for (int run = 0; run < 100; ++run) team.run([&](int) { ++num_members; });
        CHECK(num_members >= 100 && num_members <= 100 * size);  // who has not woken up misses the run
        check_run(team, {});
        check_run(team, {0});
        check_run(team, {0, 0, 1, 0, 7, 0});
    }
}

TEST(team_with_uneven_items_and_pauses_between_runs) {
    for (int size : kTeamSizes) {
        Team team(size);
        for (int run = 0; run < 12; ++run) {
            std::vector<int> results(20);
            team.run([&](int member) {
                for (int phase = 0; phase < 5; ++phase)
                    team.for_each(20, member, [&](int item, int) {
                        busy(item % 7 == 0 ? 20000 : 10);
                        ++results[item];
                    });
            });
            for (int result : results) CHECK(result == 5);
            busy(run % 3 == 0 ? 3000000 : 10);  // long enough that members fall asleep
        }
    }
}

TEST(teams_come_and_go) {
    for (int round = 0; round < 50; ++round) {
        Team idle(1 + round % 5);  // never runs anything
        auto team = std::make_unique<Team>(1 + round % 7);
        check_run(*team, {round, 3});
    }
}

}  // namespace hotseat::tests
