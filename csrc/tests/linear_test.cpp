// Rows times a panel: every mode, epilogue, number of rows and of columns.
#include <algorithm>

#include "tests/check.h"

namespace hotseat::tests {

namespace {

constexpr int kValuesPerStep[] = {4, 2, 1};  // by WeightMode
constexpr WeightMode kModes[] = {WeightMode::int8, WeightMode::bf16, WeightMode::fp32};
constexpr Epilogue kEpilogues[] = {Epilogue::store, Epilogue::add, Epilogue::swiglu};

// A random tile and all memory that it points to.
struct Problem {
    Problem(Random& random, WeightMode mode, int rows, int steps, bool extreme = false)
        : mode(mode),
          rows(rows),
          steps(steps),
          stride((static_cast<size_t>(steps) * 4 + 63) / 64 * 64),
          activations(rows * stride),
          panel(static_cast<size_t>(steps) * kPanelStep, 0, 4096),
          row_scale(rows),
          row_sum(rows),
          column_scale(random_floats(random, kPanel)) {
        for (int row = 0; row < rows; ++row) {
            uint8_t* values = activations.data() + row * stride;
            for (int k = 0; k < steps * per_step(); ++k) set(values, k, random, extreme, 0);
            row_scale[row] = std::fabs(random.normal());
            if (mode == WeightMode::int8)
                for (int k = 0; k < steps * 4; ++k) row_sum[row] += static_cast<int8_t>(values[k]);
        }
        for (int k = 0; k < steps * kPanel * per_step(); ++k) set(panel.data(), k, random, extreme, 128);
    }

    int per_step() const { return kValuesPerStep[static_cast<int>(mode)]; }

    void set(uint8_t* values, int k, Random& random, bool extreme, int zero) const {
        const float x = extreme ? (random.below(2) ? 1.0f : -1.0f) : std::clamp(random.normal(0.3f), -1.0f, 1.0f);
        if (mode == WeightMode::int8) {
            values[k] = static_cast<uint8_t>(static_cast<int>(x * 127.0f) + zero);
        } else if (mode == WeightMode::bf16) {
            const uint16_t word = static_cast<uint16_t>(bits_of(x) >> 16);
            std::memcpy(values + 2 * k, &word, 2);
        } else {
            std::memcpy(values + 4 * k, &x, 4);
        }
    }

    double value(const uint8_t* p, int zero) const {
        if (mode == WeightMode::int8) return zero ? *p - 128 : static_cast<int8_t>(*p);
        if (mode == WeightMode::fp32) {
            float x;
            std::memcpy(&x, p, 4);
            return x;
        }
        uint16_t word;
        std::memcpy(&word, p, 2);
        return bf16_value(word);
    }

    // Column c of row r by the definition, before the epilogue.
    double product(int row, int column) const {
        const int bytes = 4 / per_step();
        double sum = 0.0;
        for (int s = 0; s < steps; ++s)
            for (int k = 0; k < per_step(); ++k)
                sum += value(activations.data() + row * stride + s * 4 + k * bytes, 0) *
                       value(panel.data() + static_cast<size_t>(s) * kPanelStep + column * 4 + k * bytes, 128);
        return mode == WeightMode::int8 ? sum * row_scale[row] * column_scale[column] : sum;
    }

    LinearTile tile(int first, int num_rows, int columns, Epilogue epilogue, float* out, size_t out_stride) const {
        return {
            .mode = mode,
            .activations = activations.data() + first * stride,
            .activation_stride = stride,
            .row_scale = row_scale.data() + first,
            .row_sum = row_sum.data() + first,
            .rows = num_rows,
            .panel = panel.data(),
            .column_scale = column_scale.data(),
            .steps = steps,
            .columns = columns,
            .out = out + first * out_stride,
            .out_stride = out_stride,
            .epilogue = epilogue,
        };
    }

    WeightMode mode;
    int rows, steps;
    size_t stride;
    Guarded<uint8_t> activations;
    Guarded<uint8_t> panel;  // the kernel may read ahead a little
    Guarded<float> row_scale;
    Guarded<int32_t> row_sum;
    Guarded<float> column_scale;
};

constexpr float kBefore = 0.5f;

double expected_output(const Problem& problem, int row, int column, Epilogue epilogue) {
    const double y = problem.product(row, column);
    if (epilogue == Epilogue::store) return y;
    if (epilogue == Epilogue::add) return kBefore + y;
    return y / (1.0 + std::exp(-y)) * problem.product(row, column + kPanel / 2);
}

void check_definition(const Problem& problem, int outputs, Epilogue epilogue, const Guarded<float>& out,
                      size_t out_stride, const char* table) {
    const double tolerance = 2e-6 * (1 + problem.steps) * (problem.mode == WeightMode::int8 ? 100.0 : 1.0);
    for (int row = 0; row < problem.rows; ++row)
        for (int c = 0; c < outputs; ++c) {
            const double expected = expected_output(problem, row, c, epilogue);
            REQUIRE_MESSAGE(
                close(out[row * out_stride + c], expected, tolerance * (1.0 + std::fabs(expected))),
                text("%s, mode %d, epilogue %d, row %d, column %d: %g, not %g", table, static_cast<int>(problem.mode),
                     static_cast<int>(epilogue), row, c, static_cast<double>(out[row * out_stride + c]), expected));
        }
}

// All rows at once, then every row alone: the same bits, and nothing beside the
// columns is written.
void check_tile(const KernelTable& table, const Problem& problem, int columns, Epilogue epilogue) {
    const int outputs = epilogue == Epilogue::swiglu ? columns / 2 : columns;
    const size_t out_stride = outputs + 3;
    Guarded<float> out(problem.rows * out_stride, kBefore), alone(problem.rows * out_stride, kBefore);
    table.linear(problem.tile(0, problem.rows, columns, epilogue, out.data(), out_stride));
    for (int row = 0; row < problem.rows; ++row)
        table.linear(problem.tile(row, 1, columns, epilogue, alone.data(), out_stride));
    check_same(out, alone, table.name, "linear by rows", problem.rows);
    for (int row = 0; row < problem.rows; ++row)
        for (size_t c = outputs; c < out_stride; ++c)
            REQUIRE_MESSAGE(out[row * out_stride + c] == kBefore, text("%s: %d columns", table.name, columns));
    check_definition(problem, outputs, epilogue, out, out_stride, table.name);
    Guarded<float> expected(problem.rows * out_stride, kBefore);
    scalar_table().linear(problem.tile(0, problem.rows, columns, epilogue, expected.data(), out_stride));
    check_same(out, expected, table.name, "linear", problem.rows);
}

}  // namespace

TEST_CASE("linear agrees over rows and steps") {
    Random random(11);
    for (WeightMode mode : kModes)
        for (int steps : {1, 2, 3, 13, 64})
            for (int rows = 1; rows <= 14; ++rows) {
                const Problem problem(random, mode, rows, steps);
                for (Epilogue epilogue : kEpilogues)
                    for (const KernelTable* table : tables()) check_tile(*table, problem, kPanel, epilogue);
            }
}

TEST_CASE("linear agrees over columns") {
    Random random(12);
    for (WeightMode mode : kModes)
        for (int columns : {1, 2, 15, 16, 17, 30, 32, 33, 48, 62, 63}) {
            const Problem problem(random, mode, 5, 9);
            for (const KernelTable* table : tables()) {
                check_tile(*table, problem, columns, Epilogue::store);
                check_tile(*table, problem, columns, Epilogue::add);
                if (columns % 2 == 0) check_tile(*table, problem, columns, Epilogue::swiglu);
            }
        }
}

TEST_CASE("linear int8 does not saturate") {
    Random random(13);
    for (int steps : {1, 7, 400}) {
        const Problem problem(random, WeightMode::int8, 7, steps, /*extreme=*/true);
        for (const KernelTable* table : tables()) check_tile(*table, problem, kPanel, Epilogue::store);
    }
    Problem problem(random, WeightMode::int8, 7, 400, true);  // the largest sums of both signs
    for (size_t i = 0; i < problem.panel.size(); ++i) problem.panel[i] = i / 4 % 2 ? 255 : 1;
    for (int row = 0; row < problem.rows; ++row) {
        std::memset(problem.activations.data() + row * problem.stride, row % 2 ? 127 : -127, problem.steps * 4);
        problem.row_sum[row] = (row % 2 ? 127 : -127) * problem.steps * 4;
    }
    for (const KernelTable* table : tables()) check_tile(*table, problem, kPanel, Epilogue::store);
}

TEST_CASE("linear keeps a broken row to itself") {
    Random random(14);
    for (WeightMode mode : kModes)
        for (int broken = 0; broken < 8; ++broken) {
            Problem problem(random, mode, 8, 6);
            const Problem healthy = problem;
            const float nan = std::nanf("");
            problem.row_scale[broken] = nan;
            if (mode != WeightMode::int8)
                std::memset(problem.activations.data() + broken * problem.stride, 0xff, problem.steps * 4);
            for (const KernelTable* table : tables())
                for (Epilogue epilogue : kEpilogues) {
                    const int outputs = epilogue == Epilogue::swiglu ? kPanel / 2 : kPanel;
                    Guarded<float> out(8 * kPanel, kBefore), expected(8 * kPanel, kBefore);
                    table->linear(problem.tile(0, 8, kPanel, epilogue, out.data(), kPanel));
                    table->linear(healthy.tile(0, 8, kPanel, epilogue, expected.data(), kPanel));
                    for (int c = 0; c < outputs; ++c) {
                        REQUIRE_MESSAGE(std::isnan(out[broken * kPanel + c]),
                                        text("%s, mode %d", table->name, static_cast<int>(mode)));
                        out[broken * kPanel + c] = expected[broken * kPanel + c];
                    }
                    check_same(out, expected, table->name, "linear beside a broken row", broken);
                }
        }
}

}  // namespace hotseat::tests
