// The pool of threads. Shared counters are plain integers on purpose: a region's
// end must order them, which the thread sanitizer checks.
#include "decoder/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

const int kPoolSizes[] = {1, 2, 3, 5, 16};  // more than there are cores, too

// Work that takes a while, without a clock.
unsigned busy(int rounds) {
    volatile unsigned sink = 0;
    for (int i = 0; i < rounds; ++i) sink = sink + 1;
    return sink;
}

// One run of `totals.size()` regions. Every item of a region is done once, by one
// worker, after all items of the region before.
void check_run(ThreadPool& pool, const std::vector<int>& totals, int rounds = 0) {
    std::vector<std::vector<int>> done(totals.size());
    for (size_t region = 0; region < totals.size(); ++region) done[region].assign(totals[region], 0);
    std::atomic<int> num_too_early{0}, num_strangers{0};
    pool.run([&](int worker) {
        for (size_t region = 0; region < totals.size(); ++region)
            pool.for_each(totals[region], worker, [&](int item, int who) {
                if (who != worker || who < 0 || who >= pool.size()) ++num_strangers;
                busy(item + 1 == totals[region] ? 10 * rounds : rounds);  // the others have to wait for the last
                ++done[region][item];
                if (region == 0) return;
                for (int count : done[region - 1])
                    if (count != 1) ++num_too_early;
            });
    });
    REQUIRE_MESSAGE((num_too_early == 0 && num_strangers == 0), text("%d threads", pool.size()));
    for (size_t region = 0; region < totals.size(); ++region)
        for (int count : done[region])
            REQUIRE_MESSAGE(count == 1, text("%d threads, region %zu: %d times", pool.size(), region, count));
}

}  // namespace

TEST_CASE("denormals are zero inside a run alone") {
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
    for (int size : kPoolSizes) {
        ThreadPool pool(size);
        pool.run([&](int worker) {
            num_kept += are_kept();
            pool.for_each(4 * size, worker, [&](int, int) { num_kept += are_kept(); });
        });
        are_kept_outside = are_kept_outside && are_kept();
    }
    std::fesetenv(&before);
    REQUIRE_MESSAGE((are_kept_outside && num_kept == 0), text("%d kept inside", num_kept.load()));
}

TEST_CASE("pool does every item once and regions in order") {
    Random random(31);
    for (int size : kPoolSizes) {
        ThreadPool pool(size);
        REQUIRE(pool.size() == size);
        for (int run = 0; run < 200; ++run) {
            std::vector<int> totals(1 + random.below(8));
            for (int& total : totals) total = random.below(4) == 0 ? random.below(2) : random.below(40);
            check_run(pool, totals, run % 2 * 1000);
        }
    }
}

TEST_CASE("pool shares the work") {
    for (int size : {2, 3}) {
        ThreadPool pool(size);
        std::vector<int> num_done(size);  // each worker counts its own
        // When the others wake up is up to the machine: soon, unless it is very busy.
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        const auto somebody_is_idle = [&] { return *std::min_element(num_done.begin(), num_done.end()) == 0; };
        while (somebody_is_idle() && std::chrono::steady_clock::now() < deadline)
            pool.run([&](int worker) {
                pool.for_each(20, worker, [&](int, int who) {
                    busy(2000);
                    ++num_done[who];
                });
            });
        for (int worker = 0; worker < size; ++worker)
            REQUIRE_MESSAGE(num_done[worker] > 0, text("worker %d of %d never worked", worker, size));
    }
}

TEST_CASE("pool survives thousands of short runs") {
    for (int size : kPoolSizes) {
        ThreadPool pool(size);
        int64_t sum = 0;
        for (int run = 0; run < 3000; ++run) {
            std::vector<int> items(3);
            pool.run([&](int worker) {
                pool.for_each(3, worker, [&](int item, int) { items[item] = item + run; });
                pool.for_each(1, worker, [&](int, int) { sum += std::accumulate(items.begin(), items.end(), 0); });
            });
        }
        REQUIRE_MESSAGE(sum == 3000LL * 3 + 3 * 2999LL * 3000 / 2, text("%d threads", size));
    }
}

TEST_CASE("pool runs without phases and with empty regions") {
    for (int size : kPoolSizes) {
        ThreadPool pool(size);
        std::atomic<int> num_members{0};
        for (int run = 0; run < 100; ++run) pool.run([&](int) { ++num_members; });
        REQUIRE((num_members >= 100 && num_members <= 100 * size));  // who has not woken up misses the run
        check_run(pool, {});
        check_run(pool, {0});
        check_run(pool, {0, 0, 1, 0, 7, 0});
    }
}

TEST_CASE("pool with uneven items and pauses between runs") {
    for (int size : kPoolSizes) {
        ThreadPool pool(size);
        for (int run = 0; run < 12; ++run) {
            std::vector<int> results(20);
            pool.run([&](int worker) {
                for (int region = 0; region < 5; ++region)
                    pool.for_each(20, worker, [&](int item, int) {
                        busy(item % 7 == 0 ? 20000 : 10);
                        ++results[item];
                    });
            });
            for (int result : results) REQUIRE(result == 5);
            busy(run % 3 == 0 ? 3000000 : 10);  // long enough that workers fall asleep
        }
    }
}

TEST_CASE("an exception in an item ends the run and not the pool") {
    for (int size : kPoolSizes) {
        ThreadPool pool(size);
        for (int bad = 0; bad < 20; ++bad) {
            bool is_caught = false;
            std::atomic<int> num_later{0};
            try {
                pool.run([&](int worker) {
                    pool.for_each(20, worker, [&](int item, int) {
                        if (item == bad) throw std::bad_alloc();
                    });
                    pool.for_each(20, worker, [&](int, int) { ++num_later; });
                });
            } catch (const std::bad_alloc&) {
                is_caught = true;
            }
            REQUIRE_MESSAGE((is_caught && num_later == 0),
                            text("%d threads, item %d: %d later", size, bad, num_later.load()));
            check_run(pool, {7, 0, 20});
        }
    }
}

TEST_CASE("an exception between regions ends the run and not the pool") {
    for (int size : kPoolSizes) {
        ThreadPool pool(size);
        for (int run = 0; run < 20; ++run) {
            std::string message;
            try {
                pool.run([&](int worker) {
                    pool.for_each(5, worker, [](int, int) {});
                    if (worker == 0) throw std::runtime_error("caller's");
                    pool.for_each(5, worker, [](int, int) {});
                });
            } catch (const std::runtime_error& error) {
                message = error.what();
            }
            REQUIRE_MESSAGE(message == "caller's", text("%d threads: %s", size, message.c_str()));
            check_run(pool, {7, 0, 20});
        }
    }
}

TEST_CASE("pools come and go") {
    for (int round = 0; round < 50; ++round) {
        ThreadPool idle(1 + round % 5);  // never runs anything
        auto pool = std::make_unique<ThreadPool>(1 + round % 7);
        check_run(*pool, {round, 3});
    }
}

}  // namespace hotseat::tests
