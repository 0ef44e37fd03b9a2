// The head of a distribution against a full sort, on rows where it takes
// buckets: flat ones, narrow ones, with many equal values and weights.
#include "decoder/head.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

struct Row {
    std::vector<float> x;
    std::vector<int32_t> weights;
    float peak = 0.0f;

    Row(int size, const std::function<float()>& value) {
        for (int i = 0; i < size; ++i) x.push_back(value());
        peak = *std::max_element(x.begin(), x.end());
        for (float v : x) weights.push_back(static_cast<int32_t>(std::lrint(std::exp(v - peak) * 0x1p30f)));
    }
    std::vector<int32_t> all() const {
        std::vector<int32_t> ids(x.size());
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
        return ids;
    }
    std::vector<int32_t> sorted() const {
        std::vector<int32_t> ids = all();
        std::sort(ids.begin(), ids.end(),
                  [this](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
        return ids;
    }
};

std::vector<Row> rows() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(-40.0f, 0.0f);
    std::vector<Row> result;
    for (int size : {1, 2, 1000, 1025, 5000, 20000}) {
        result.emplace_back(size, [&] { return 2.0f * normal(random); });
        result.emplace_back(size, [&] { return 1.5f; });
        result.emplace_back(size, [&] { return 0.001f * normal(random); });
        result.emplace_back(size, [&] { return std::round(4.0f * normal(random)) / 4.0f; });
        result.emplace_back(size, [&] { return uniform(random); });
        result.emplace_back(
            size, [&, i = 0]() mutable { return ++i % 3 ? normal(random) : -std::numeric_limits<float>::infinity(); });
    }
    return result;
}

}  // namespace

TEST_CASE("a head keeps and draws what a sort would") {
    for (const Row& row : rows()) {
        const std::vector<int32_t> sorted = row.sorted();
        for (size_t k : {size_t{1}, size_t{17}, row.x.size() / 2, row.x.size()}) {
            for (double share : {0.0, 0.3, 0.9, 0.9999, 1.0}) {
                std::vector<int32_t> ids = row.all();
                Head head;
                head.assign(ids, row.x.data(), row.peak, row.weights.data());
                if (k > 0) head.keep(k);
                const size_t num_kept = k > 0 ? std::min(k, sorted.size()) : sorted.size();
                int64_t total = 0, sum = 0;
                for (size_t i = 0; i < num_kept; ++i) total += row.weights[sorted[i]];
                REQUIRE(head.weight() == total);
                const double threshold = share * static_cast<double>(total);
                head.keep_weight(threshold);
                size_t expected = 0;
                while (expected < num_kept) {
                    sum += row.weights[sorted[expected++]];
                    if (static_cast<double>(sum) >= threshold) break;
                }
                REQUIRE(head.size() == expected);
                REQUIRE(head.weight() == sum);
                for (double u : {0.0, 0.1, 0.5, 0.77, 0.999, 1.0 - 0x1p-24}) {
                    const double target = u * static_cast<double>(sum);
                    int64_t walked = 0;
                    size_t at = 0;
                    for (; at < expected; ++at)
                        if (static_cast<double>(walked += row.weights[sorted[at]]) > target) break;
                    REQUIRE(head.draw(target) == sorted[std::min(at, expected - 1)]);
                }
            }
        }
    }
}

}  // namespace hotseat::tests
