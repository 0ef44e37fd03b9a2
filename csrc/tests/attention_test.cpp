// Attention of a few rows over one partition, and what writes and merges partitions.
#include <algorithm>
#include <limits>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A partition of random keys and values, each tile in memory of its own; lanes at
// and beyond num_positions hold NaN.
template <class T>
struct Partition {
    Partition(Random& random, int head_dim, int num_positions)
        : head_dim(head_dim), padded((head_dim + 15) / 16 * 16), num_positions(num_positions) {
        const KernelTable& table = scalar_table();
        const int num_tiles = (num_positions + kTile - 1) / kTile;
        for (int g = 0; g < num_tiles; ++g) {
            keys.emplace_back(kTile * (kIsPairs ? even_head_dim(head_dim) : head_dim), broken());
            values.emplace_back(kTile * padded, broken());
        }
        for (int position = 0; position < num_positions; ++position) {
            const Guarded<float> key = random_floats(random, head_dim), value = random_floats(random, head_dim);
            T *k = keys[position / kTile].data(), *v = values[position / kTile].data();
            if constexpr (kIsPairs) {
                table.write_key_bf16(key.data(), head_dim, k, position % kTile);
                table.write_value_bf16(value.data(), head_dim, padded, v, position % kTile);
            } else {
                table.write_key_fp32(key.data(), head_dim, k, position % kTile);
                table.write_value_fp32(value.data(), head_dim, padded, v, position % kTile);
            }
        }
    }

    static constexpr bool kIsPairs = sizeof(T) == 2;
    static T broken() {
        if constexpr (kIsPairs)
            return 0x7fff;
        else
            return std::numeric_limits<float>::quiet_NaN();
    }
    static double number(T x) {
        if constexpr (kIsPairs)
            return bf16_value(x);
        else
            return x;
    }
    // Where it lies in its tile.
    static size_t key_index(int lane, int d) {
        return kIsPairs ? d / 2 * 2 * kTile + 2 * lane + d % 2 : d * kTile + lane;
    }
    size_t value_index(int lane, int d) const {
        return kIsPairs ? lane / 2 * 2 * padded + 2 * d + lane % 2 : lane * padded + d;
    }
    double key(int position, int d) const { return number(keys[position / kTile][key_index(position % kTile, d)]); }
    double value(int position, int d) const {
        return number(values[position / kTile][value_index(position % kTile, d)]);
    }
    // What comes behind `limit` positions becomes NaN.
    void break_from(int limit) {
        for (int position = limit; position < num_positions; ++position) {
            for (int d = 0; d < head_dim; ++d) keys[position / kTile][key_index(position % kTile, d)] = broken();
            for (int d = 0; d < padded; ++d) values[position / kTile][value_index(position % kTile, d)] = broken();
        }
    }
    KvPartition view() const {
        KvPartition view{};
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
Result attend(const KernelTable& table, const Partition<T>& partition, const std::vector<Guarded<float>>& queries,
              const std::vector<int>& limits, int first, int rows, const KvPartition* next = nullptr) {
    const KvPartition view = partition.view();
    const size_t length = Partition<T>::kIsPairs ? even_head_dim(partition.head_dim) : partition.head_dim;
    Guarded<T> packed(rows * length);
    for (int r = 0; r < rows; ++r)
        if constexpr (Partition<T>::kIsPairs)
            table.to_bf16(queries[first + r].data(), partition.head_dim, packed.data() + r * length);
        else
            std::copy_n(queries[first + r].data(), length, packed.data() + r * length);
    Result result(rows, partition.padded);
    const AttentionTile tile{
        .queries = packed.data(),
        .query_stride = length * sizeof(T),
        .limits = limits.data() + first,
        .rows = rows,
        .head_dim = partition.head_dim,
        .head_dim_padded = partition.padded,
        .partition = &view,
        .next = next,
        .out = {result.max.data(), result.sum.data(), result.values.data()},
    };
    if constexpr (Partition<T>::kIsPairs)
        table.attention_bf16(tile);
    else
        table.attention_fp32(tile);
    result.max.check(), result.sum.check(), result.values.check();
    return result;
}

// Against the formula. Rounding to bf16 changes a weight by a factor of at most 1 + 2^-8; the rounded queries are
// known.
template <class T>
void check_definition(const Partition<T>& partition, const Guarded<float>& query, int limit, const Result& result) {
    const double rounding = Partition<T>::kIsPairs ? std::exp2(-8.0) : 0.0;
    std::vector<double> scores(limit), weights(limit);
    double peak = -kInfinity, sum = 0.0;
    for (int position = 0; position < limit; ++position) {
        for (int d = 0; d < partition.head_dim; ++d) {
            uint16_t word;
            scalar_table().to_bf16(&query[d], 1, &word);
            scores[position] += (Partition<T>::kIsPairs ? bf16_value(word) : query[d]) * partition.key(position, d);
        }
        peak = std::max(peak, scores[position]);
    }
    REQUIRE(close(result.max[0], peak, 1e-4));
    for (int position = 0; position < limit; ++position) sum += weights[position] = std::exp2(scores[position] - peak);
    REQUIRE(close(result.sum[0], sum, (1e-4 + rounding) * sum));
    for (int d = 0; d < partition.head_dim; ++d) {
        double value = 0.0, size = 0.0;
        for (int position = 0; position < limit; ++position) {
            value += weights[position] * partition.value(position, d);
            size += weights[position] * std::fabs(partition.value(position, d));
        }
        REQUIRE_MESSAGE(close(result.values[d], value, 1e-4 * sum + rounding * size),
                        text("dimension %d of %d: %g, not %g", d, partition.head_dim,
                             static_cast<double>(result.values[d]), value));
    }
}

void check_same_row(const Result& actual, int row, const Result& expected, int padded, const char* table, int limit) {
    REQUIRE_MESSAGE((same(actual.max[row], expected.max[0]) && same(actual.sum[row], expected.sum[0])),
                    text("%s: row %d, limit %d", table, row, limit));
    for (int d = 0; d < padded; ++d)
        REQUIRE_MESSAGE(same(actual.values[row * padded + d], expected.values[d]),
                        text("%s: row %d, limit %d, dimension %d", table, row, limit, d));
}

// Rows together against rows alone against the scalar table against the
// formula.
template <class T>
void check_partition(Random& random, int head_dim, int num_positions, int rows) {
    const Partition<T> partition(random, head_dim, num_positions);
    std::vector<Guarded<float>> queries;
    std::vector<int> limits;
    for (int r = 0; r < rows; ++r) {
        queries.push_back(random_floats(random, head_dim, 0.5f));
        // As in a prefill: consecutive ends, the last rows see everything.
        limits.push_back(std::max(num_positions - (rows - 1 - r) / 2, 1));
    }
    const KvPartition next = partition.view();
    for (const KernelTable* table : tables()) {
        const Result together = attend(*table, partition, queries, limits, 0, rows, &next);
        for (int r = 0; r < rows; ++r) {
            const Result alone = attend(*table, partition, queries, limits, r, 1);
            const Result scalar = attend(scalar_table(), partition, queries, limits, r, 1);
            if (table == tables().front()) check_definition(partition, queries[r], limits[r], scalar);
            check_same_row(together, r, alone, partition.padded, table->name, limits[r]);
            check_same_row(together, r, scalar, partition.padded, table->name, limits[r]);
        }
    }
}

// Rows see no more than their limits say: all that is behind the first row's becomes NaN.
template <class T>
void check_limits(Random& random, int limit, int rows) {
    const Partition<T> whole(random, 20, 100);
    Partition<T> broken = whole;
    broken.break_from(limit);
    std::vector<Guarded<float>> queries;
    std::vector<int> limits;
    for (int r = 0; r < rows; ++r) {
        queries.push_back(random_floats(random, 20, 0.5f));
        limits.push_back(limit + r);
    }
    for (const KernelTable* table : tables()) {
        const Result expected = attend(*table, whole, queries, limits, 0, 1);
        check_same_row(attend(*table, broken, queries, limits, 0, rows), 0, expected, 32, table->name, limit);
        REQUIRE_MESSAGE(table->all_finite(expected.values.data(), 20), text("%s, limit %d", table->name, limit));
    }
}

}  // namespace

TEST_CASE("attention agrees over lengths") {
    Random random(21);
    for (int num_positions : {1, 2, 15, 16, 17, 63, 64, 65, 80, 128, 255, 256})
        for (int rows : {1, 3, 6, 8}) {
            check_partition<float>(random, 12, num_positions, rows);
            check_partition<uint16_t>(random, 12, num_positions, rows);
        }
}

TEST_CASE("attention agrees over head sizes and rows") {
    Random random(22);
    for (int head_dim : {2, 7, 8, 16, 20, 64, 80, 128, 130})
        for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 24}) {
            check_partition<float>(random, head_dim, 37, rows);
            check_partition<uint16_t>(random, head_dim, 37, rows);
        }
}

TEST_CASE("attention leaves alone what a row does not see") {
    Random random(23);
    for (int limit : {1, 2, 15, 16, 17, 63, 64, 65, 80, 81, 91})
        for (int rows : {1, 2, 4, 8, 9}) {
            check_limits<float>(random, limit, rows);
            check_limits<uint16_t>(random, limit, rows);
        }
}

TEST_CASE("attention fetches a next partition of any length") {
    Random random(28);
    const Partition<uint16_t> partition(random, 20, 100);
    const std::vector<Guarded<float>> queries = {random_floats(random, 20)};
    const Result expected = attend(scalar_table(), partition, queries, {100}, 0, 1);
    for (int length : {1, 100, 256}) {
        const KvPartition next = Partition<uint16_t>(random, 20, length).view();  // fetching what is gone does no harm
        for (const KernelTable* table : tables())
            check_same_row(attend(*table, partition, queries, {100}, 0, 1, &next), 0, expected, 32, table->name,
                           length);
    }
}

TEST_CASE("attention by pairs does not care how far apart scores are") {
    Random random(29);
    Partition<uint16_t> partition(random, 8, 50);
    for (Guarded<uint16_t>& keys : partition.keys)
        for (size_t i = 0; i < keys.size(); ++i) keys[i] += 10 << 7;  // times 2^10; NaN stays behind the limit
    const std::vector<Guarded<float>> queries = {random_floats(random, 8)};
    const Result scalar = attend(scalar_table(), partition, queries, {49}, 0, 1);
    REQUIRE((scalar.sum[0] >= 1.0f && scalar.sum[0] < 2.0f));
    for (const KernelTable* table : tables())
        check_same_row(attend(*table, partition, queries, {49}, 0, 1), 0, scalar, 16, table->name, 49);
}

TEST_CASE("attention of far apart scores has no overflow") {
    Random random(24);
    Partition<float> partition(random, 8, 50);
    for (Guarded<float>& keys : partition.keys)
        for (size_t i = 0; i < keys.size(); ++i) keys[i] *= 1000.0f;
    const std::vector<Guarded<float>> queries = {random_floats(random, 8)};
    for (const KernelTable* table : tables()) {
        const Result result = attend(*table, partition, queries, {50}, 0, 1);
        REQUIRE_MESSAGE((result.sum[0] >= 1.0f && result.sum[0] < 2.0f), text("%s", table->name));
        REQUIRE_MESSAGE(table->all_finite(result.values.data(), 8), text("%s", table->name));
    }
}

static void merge(const KernelTable& table, const AttentionState& state, float max, float sum, Guarded<float> values,
                  int n) {
    table.merge_partitions(state, {&max, &sum, values.data()}, 1, n);
}

TEST_CASE("rows merge side by side as alone") {
    Random random(30);
    for (int rows : {1, 2, 15, 16, 17, 24}) {
        constexpr int kWidth = 32;
        const Guarded<float> max = random_floats(random, 2 * rows), sum = random_floats(random, 2 * rows);
        const Guarded<float> values = random_floats(random, 2 * rows * kWidth);
        for (const KernelTable* table : tables()) {
            Guarded<float> max1 = max, sum1 = sum, values1 = values, max2 = max, sum2 = sum, values2 = values;
            const auto state_at = [&](Guarded<float>& m, Guarded<float>& s, Guarded<float>& v, int r) {
                return AttentionState{m.data() + r, s.data() + r, v.data() + r * kWidth};
            };
            table->merge_partitions(state_at(max1, sum1, values1, 0), state_at(max1, sum1, values1, rows), rows,
                                    kWidth);
            for (int r = 0; r < rows; ++r)
                scalar_table().merge_partitions(state_at(max2, sum2, values2, r),
                                                state_at(max2, sum2, values2, rows + r), 1, kWidth);
            check_same(max1, max2, table->name, "max", rows);
            check_same(sum1, sum2, table->name, "sum", rows);
            check_same(values1, values2, table->name, "values", rows);
        }
    }
}

TEST_CASE("partitions merge as if they were one") {
    Random random(25);
    for (int n : {16, 32, 80, 96}) {
        const Guarded<float> first = random_floats(random, n), second = random_floats(random, n);
        for (const auto& [max_a, max_b] : {std::pair{3.0f, 1.5f}, {-2.0f, 5.0f}, {0.5f, 0.5f}, {200.0f, -200.0f}})
            for (const KernelTable* table : tables()) {
                Guarded<float> state(n), expected(n);
                float peak = -kInfinity, sum = 0.0f, peak_scalar = -kInfinity, sum_scalar = 0.0f;
                merge(*table, {&peak, &sum, state.data()}, max_a, 4.0f, first, n);
                REQUIRE_MESSAGE((peak == max_a && sum == 4.0f), text("%s", table->name));
                for (int i = 0; i < n; ++i) REQUIRE_MESSAGE(state[i] == first[i], text("%s", table->name));
                merge(*table, {&peak, &sum, state.data()}, max_b, 7.0f, second, n);
                const double top = std::max(max_a, max_b), keep = std::exp2(max_a - top), take = std::exp2(max_b - top);
                REQUIRE_MESSAGE((peak == top && close(sum, 4.0 * keep + 7.0 * take, 1e-5)), text("%s", table->name));
                for (int i = 0; i < n; ++i)
                    REQUIRE_MESSAGE(close(state[i], first[i] * keep + second[i] * take, 1e-5), text("%s", table->name));
                merge(scalar_table(), {&peak_scalar, &sum_scalar, expected.data()}, max_a, 4.0f, first, n);
                merge(scalar_table(), {&peak_scalar, &sum_scalar, expected.data()}, max_b, 7.0f, second, n);
                REQUIRE_MESSAGE(same(sum, sum_scalar), text("%s", table->name));
                check_same(state, expected, table->name, "merge_partitions", n);
            }
    }
}

TEST_CASE("divide agrees") {
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

TEST_CASE("keys and values are written into their lane alone") {
    Random random(27);
    for (int n : {2, 7, 8, 12, 16, 20, 33, 64, 80})
        for (int lane : {0, 7, 14, 15}) {
            const int padded = (n + 15) / 16 * 16, even = even_head_dim(n);
            const Guarded<float> x = random_floats(random, n);
            Guarded<uint16_t> words(padded);
            scalar_table().to_bf16(x.data(), n, words.data());
            for (const KernelTable* table : tables()) {
                Guarded<uint16_t> key16(kTile * even, 0x1234), key16_expected = key16;
                Guarded<uint16_t> value16(kTile * padded, 0x1234), value16_expected = value16;
                Guarded<float> key32(kTile * n, 7.0f), key32_expected = key32;
                Guarded<float> value32(kTile * padded, 7.0f), value32_expected = value32;
                const Partition<uint16_t> pairs(random, n, 1);
                for (int d = 0; d < even; ++d) key16_expected[pairs.key_index(lane, d)] = words[d];
                for (int d = 0; d < padded; ++d) {
                    value16_expected[pairs.value_index(lane, d)] = words[d];
                    value32_expected[lane * padded + d] = d < n ? x[d] : 0.0f;
                }
                for (int d = 0; d < n; ++d) key32_expected[d * kTile + lane] = x[d];
                table->write_key_bf16(x.data(), n, key16.data(), lane);
                table->write_key_fp32(x.data(), n, key32.data(), lane);
                table->write_value_bf16(x.data(), n, padded, value16.data(), lane);
                table->write_value_fp32(x.data(), n, padded, value32.data(), lane);
                check_same(key16, key16_expected, table->name, "key, bf16", n);
                check_same(key32, key32_expected, table->name, "key, fp32", n);
                check_same(value16, value16_expected, table->name, "value, bf16", n);
                check_same(value32, value32_expected, table->name, "value, fp32", n);
            }
        }
}

}  // namespace hotseat::tests
