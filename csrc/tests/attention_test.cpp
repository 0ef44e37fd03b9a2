// Attention of a few rows over one span, and what writes and merges spans.
#include <algorithm>
#include <limits>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A span of random keys and values, each group in memory of its own; lanes at
// and beyond num_positions hold NaN.
template <class T>
struct Span {
    Span(Random& random, int head_dim, int num_positions)
        : head_dim(head_dim), padded((head_dim + 15) / 16 * 16), num_positions(num_positions) {
        const KernelTable& table = scalar_table();
        const int num_groups = (num_positions + kGroup - 1) / kGroup;
        for (int g = 0; g < num_groups; ++g) {
            keys.emplace_back(kGroup * head_dim, broken());
            values.emplace_back(kGroup * padded, broken());
        }
        for (int position = 0; position < num_positions; ++position) {
            const Guarded<float> key = random_floats(random, head_dim), value = random_floats(random, head_dim);
            T *k = keys[position / kGroup].data(), *v = values[position / kGroup].data() + position % kGroup * padded;
            if constexpr (sizeof(T) == 2) {
                table.write_key_bf16(key.data(), head_dim, k, position % kGroup);
                table.write_value_bf16(value.data(), head_dim, padded, v);
            } else {
                table.write_key_fp32(key.data(), head_dim, k, position % kGroup);
                table.write_value_fp32(value.data(), head_dim, padded, v);
            }
        }
    }

    static T broken() {
        if constexpr (sizeof(T) == 2)
            return 0x7fff;
        else
            return std::numeric_limits<float>::quiet_NaN();
    }
    static double number(T x) {
        if constexpr (sizeof(T) == 2)
            return bf16_value(x);
        else
            return x;
    }
    double key(int position, int d) const { return number(keys[position / kGroup][d * kGroup + position % kGroup]); }
    double value(int position, int d) const {
        return number(values[position / kGroup][position % kGroup * padded + d]);
    }
    SpanView view() const {
        SpanView view{};
        for (size_t g = 0; g < keys.size(); ++g) view.keys[g] = keys[g].data(), view.values[g] = values[g].data();
        view.num_positions = num_positions;
        return view;
    }

    int head_dim, padded, num_positions;
    std::vector<Guarded<T>> keys, values;
};

struct Result {
    Result(int rows, int padded) : max(rows), sum(rows), values(static_cast<size_t>(rows) * padded) {}
    Guarded<float> max, sum, values;
};

template <class T>
Result attend(const KernelTable& table, const Span<T>& span, const std::vector<Guarded<float>>& queries,
              const std::vector<int>& limits, int first, int rows) {
    const SpanView view = span.view();
    std::vector<const float*> pointers;
    for (int r = 0; r < rows; ++r) pointers.push_back(queries[first + r].data());
    Guarded<float> scores(static_cast<size_t>(rows) * kSpan, -1.0f);
    Result result(rows, span.padded);
    const AttentionTile tile{
        .queries = pointers.data(),
        .limits = limits.data() + first,
        .rows = rows,
        .head_dim = span.head_dim,
        .head_dim_padded = span.padded,
        .span = &view,
        .next = view.num_positions >= kFetchedGroups * kGroup ? &view : nullptr,
        .scores = scores.data(),
        .max = result.max.data(),
        .sum = result.sum.data(),
        .values = result.values.data(),
    };
    if constexpr (sizeof(T) == 2)
        table.attention_bf16(tile);
    else
        table.attention_fp32(tile);
    scores.check();
    result.max.check(), result.sum.check(), result.values.check();
    return result;
}

template <class T>
void check_definition(const Span<T>& span, const Guarded<float>& query, int limit, const Result& result) {
    std::vector<double> scores(limit);
    double peak = -kInfinity, sum = 0.0;
    for (int position = 0; position < limit; ++position) {
        for (int d = 0; d < span.head_dim; ++d) scores[position] += query[d] * span.key(position, d);
        peak = std::max(peak, scores[position]);
    }
    CHECK(close(result.max[0], peak, 1e-4));
    for (double score : scores) sum += std::exp2(score - peak);
    CHECK(close(result.sum[0], sum, 1e-4 * sum));
    for (int d = 0; d < span.head_dim; ++d) {
        double value = 0.0;
        for (int position = 0; position < limit; ++position)
            value += std::exp2(scores[position] - peak) * span.value(position, d);
        CHECK(close(result.values[d], value, 1e-4 * sum), "dimension %d of %d: %g, not %g", d, span.head_dim,
              static_cast<double>(result.values[d]), value);
    }
}

// Rows together against rows alone against the scalar table against the
// formula.
template <class T>
void check_span(Random& random, int head_dim, int num_positions, int rows) {
    const Span<T> span(random, head_dim, num_positions);
    std::vector<Guarded<float>> queries;
    std::vector<int> limits;
    for (int r = 0; r < rows; ++r) {
        queries.push_back(random_floats(random, head_dim, 0.5f));
        // As in a prefill: consecutive ends, the last rows see everything.
        limits.push_back(std::max(num_positions - (rows - 1 - r) / 2, 0));
    }
    for (const KernelTable* table : tables()) {
        Result together = attend(*table, span, queries, limits, 0, rows);
        for (int r = 0; r < rows; ++r) {
            if (limits[r] == 0) continue;  // such a row's result is not read
            Result alone = attend(*table, span, queries, limits, r, 1);
            Result scalar = attend(scalar_table(), span, queries, limits, r, 1);
            if (table == tables().front()) check_definition(span, queries[r], limits[r], scalar);
            for (const Result* other : {&alone, &scalar}) {
                CHECK(same(together.max[r], other->max[0]) && same(together.sum[r], other->sum[0]),
                      "%s: row %d of %d, limit %d", table->name, r, rows, limits[r]);
                for (int d = 0; d < span.padded; ++d)
                    CHECK(same(together.values[r * span.padded + d], other->values[d]),
                          "%s: row %d of %d, limit %d of %d, dimension %d of %d", table->name, r, rows, limits[r],
                          num_positions, d, head_dim);
            }
        }
    }
}

}  // namespace

TEST(attention_agrees_over_lengths) {
    Random random(21);
    for (int num_positions : {1, 2, 15, 16, 17, 63, 64, 65, 80, 128, 255, 256})
        for (int rows : {1, 3, 6}) {
            check_span<float>(random, 12, num_positions, rows);
            check_span<uint16_t>(random, 12, num_positions, rows);
        }
}

TEST(attention_agrees_over_head_sizes_and_rows) {
    Random random(22);
    for (int head_dim : {2, 8, 16, 20, 64, 80, 128, 130})
        for (int rows : {1, 2, 3, 4, 5, 6, 7, 13, 16}) {
            check_span<float>(random, head_dim, 37, rows);
            check_span<uint16_t>(random, head_dim, 37, rows);
        }
}

TEST(attention_bf16_equals_attention_over_widened_keys_and_values) {
    Random random(23);
    const Span<uint16_t> narrow(random, 20, 100);
    Span<float> wide(random, 20, 100);
    for (size_t g = 0; g < narrow.keys.size(); ++g) {
        scalar_table().widen(narrow.keys[g].data(), kGroup * 20, wide.keys[g].data());
        scalar_table().widen(narrow.values[g].data(), kGroup * 32, wide.values[g].data());
    }
    const std::vector<Guarded<float>> queries = {random_floats(random, 20), random_floats(random, 20)};
    for (const KernelTable* table : tables()) {
        Result a = attend(*table, narrow, queries, {99, 100}, 0, 2), b = attend(*table, wide, queries, {99, 100}, 0, 2);
        check_same(a.max, b.max, table->name, "max", 2);
        check_same(a.sum, b.sum, table->name, "sum", 2);
        check_same(a.values, b.values, table->name, "values", 2);
    }
}

TEST(attention_of_far_apart_scores_has_no_overflow) {
    Random random(24);
    Span<float> span(random, 8, 50);
    for (Guarded<float>& keys : span.keys)
        for (size_t i = 0; i < keys.size(); ++i) keys[i] *= 1000.0f;
    const std::vector<Guarded<float>> queries = {random_floats(random, 8)};
    for (const KernelTable* table : tables()) {
        const Result result = attend(*table, span, queries, {50}, 0, 1);
        CHECK(result.sum[0] >= 1.0f && result.sum[0] < 2.0f, "%s", table->name);
        CHECK(table->all_finite(result.values.data(), 8), "%s", table->name);
    }
}

TEST(spans_merge_as_if_they_were_one) {
    Random random(25);
    for (int n : {16, 32, 80, 96}) {
        const Guarded<float> first = random_floats(random, n), second = random_floats(random, n);
        for (const auto& [max_a, max_b] : {std::pair{3.0f, 1.5f}, {-2.0f, 5.0f}, {0.5f, 0.5f}, {200.0f, -200.0f}})
            for (const KernelTable* table : tables()) {
                Guarded<float> state(n), expected(n);
                float peak = -kInfinity, sum = 0.0f, peak_scalar = -kInfinity, sum_scalar = 0.0f;
                table->merge_span(&peak, &sum, state.data(), max_a, 4.0f, first.data(), n);
                CHECK(peak == max_a && sum == 4.0f, "%s", table->name);
                for (int i = 0; i < n; ++i) CHECK(state[i] == first[i], "%s", table->name);
                table->merge_span(&peak, &sum, state.data(), max_b, 7.0f, second.data(), n);
                const double top = std::max(max_a, max_b), keep = std::exp2(max_a - top), take = std::exp2(max_b - top);
                CHECK(peak == top && close(sum, 4.0 * keep + 7.0 * take, 1e-5), "%s", table->name);
                for (int i = 0; i < n; ++i)
                    CHECK(close(state[i], first[i] * keep + second[i] * take, 1e-5), "%s", table->name);
                scalar_table().merge_span(&peak_scalar, &sum_scalar, expected.data(), max_a, 4.0f, first.data(), n);
                scalar_table().merge_span(&peak_scalar, &sum_scalar, expected.data(), max_b, 7.0f, second.data(), n);
                CHECK(same(sum, sum_scalar), "%s", table->name);
                check_same(state, expected, table->name, "merge_span", n);
            }
    }
}

TEST(divide_agrees) {
    Random random(26);
    for (int n : {2, 8, 12, 16, 20, 64, 80}) {
        const Guarded<float> values = random_floats(random, (n + 15) / 16 * 16);
        for (const KernelTable* table : tables()) {
            Guarded<float> out(n), expected(n);
            table->divide(values.data(), 3.7f, n, out.data());
            for (int i = 0; i < n; ++i) expected[i] = values[i] / 3.7f;
            check_same(out, expected, table->name, "divide", n);
        }
    }
}

TEST(keys_and_values_are_written_into_their_lane_alone) {
    Random random(27);
    for (int n : {2, 8, 12, 16, 20, 64, 80})
        for (int lane : {0, 7, 15}) {
            const int padded = (n + 15) / 16 * 16;
            const Guarded<float> x = random_floats(random, n);
            Guarded<uint16_t> words(n);
            scalar_table().to_bf16(x.data(), n, words.data());
            for (const KernelTable* table : tables()) {
                Guarded<uint16_t> key16(kGroup * n, 0x1234), key16_expected = key16, value16(padded, 0x1234);
                Guarded<float> key32(kGroup * n, 7.0f), key32_expected = key32, value32(padded, 7.0f);
                Guarded<uint16_t> value16_expected(padded);
                Guarded<float> value32_expected(padded);
                for (int i = 0; i < n; ++i) {
                    key16_expected[i * kGroup + lane] = value16_expected[i] = words[i];
                    key32_expected[i * kGroup + lane] = value32_expected[i] = x[i];
                }
                table->write_key_bf16(x.data(), n, key16.data(), lane);
                table->write_key_fp32(x.data(), n, key32.data(), lane);
                table->write_value_bf16(x.data(), n, padded, value16.data());
                table->write_value_fp32(x.data(), n, padded, value32.data());
                check_same(key16, key16_expected, table->name, "key, bf16", n);
                check_same(key32, key32_expected, table->name, "key, fp32", n);
                check_same(value16, value16_expected, table->name, "value, bf16", n);
                check_same(value32, value32_expected, table->name, "value, fp32", n);
            }
        }
}

}  // namespace hotseat::tests
