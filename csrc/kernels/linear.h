// Rows times one panel of 64 columns. `dot_*` leaves up to six rows of sums in
// a small buffer, `finish` turns them into outputs. A sum is always one chain
// over K per output (exact for integers), so neither the number of rows nor
// their place in the batch can change it.
#pragma once

namespace hotseat::HOTSEAT_ISA {

static constexpr size_t kFetchAhead = 4096;         // bytes
static constexpr size_t kLargestFetch = 384 << 10;  // bytes; two panels should fit in a core's own cache

// What a pass over the panel fetches meanwhile, or null: then it fetches the
// panel itself a little ahead, as suits a few rows, which are done when the panel
// has been read. More rows pass over the panel several times, and the first two
// passes fetch one half each of the next panel, which this thread will most
// likely multiply next: so memory works while they calculate.
static inline const uint8_t* next_to_fetch(const LinearTile& t, int pass, int num_passes) {
    const size_t bytes = static_cast<size_t>(t.steps) * kPanelStep;
    if (num_passes == 1 || bytes > kLargestFetch) return nullptr;
    return t.panel + bytes + pass % 2 * (bytes / 2);  // a third pass finds all of it in the cache
}

// For kernels that take the columns in turns: the first turn of the first rows
// fetches whole steps. (gcc drops calls of a function that only fetches, unless
// they are inlined early.)
[[gnu::always_inline]] static inline void fetch_step_ahead(const LinearTile& t, const uint8_t* a, const uint8_t* step) {
    if (a != t.activations) return;
    for (int c = 0; c < 4; ++c) __builtin_prefetch(step + kFetchAhead + c * 64, 0, 3);
}

#if defined(HOTSEAT_AVX512)

// gcc 12 spills the accumulators of the _mm512_dpbusd_epi32 intrinsic; this
// form keeps them in registers.
#define HOTSEAT_DOT(name, instruction)                                \
    static inline void name(__m512i& acc, __m512i w, __m512i x) {     \
        __m512i kept = acc;                                           \
        asm(instruction " %2, %1, %0" : "+v"(kept) : "v"(w), "v"(x)); \
        acc = kept;                                                   \
    }
HOTSEAT_DOT(multiply_add_int8, "vpdpbusd")
#if defined(HOTSEAT_AVX512BF16)
HOTSEAT_DOT(multiply_add_bf16, "vdpbf16ps")
#endif
#undef HOTSEAT_DOT

template <int kRows, void (*kMultiplyAdd)(__m512i&, __m512i, __m512i), bool kFetchesNext>
static inline void accumulate_pass(const LinearTile& t, const uint8_t* a, const uint8_t* next, const __m512i* start,
                                   float* out) {
    // One row or two wait for memory alone, and do so less through the second cache; more rows do not.
    constexpr auto kHint = kRows <= 2 ? _MM_HINT_T1 : _MM_HINT_T0;
    const size_t stride = t.activation_stride;
    const uint8_t* p = t.panel;
    __m512i acc[kRows][4];
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < 4; ++c) acc[r][c] = start[r];
    for (int s = 0; s < t.steps; ++s, p += kPanelStep, a += 4) {
        if constexpr (kFetchesNext) {
            _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
            _mm_prefetch(reinterpret_cast<const char*>(next + 64), _MM_HINT_T1);
            next += kPanelStep / 2;
        }
        __m512i w[4];
        for (int c = 0; c < 4; ++c) {
            if constexpr (!kFetchesNext) _mm_prefetch(reinterpret_cast<const char*>(p + kFetchAhead + c * 64), kHint);
            w[c] = _mm512_loadu_si512(p + c * 64);
        }
        for (int r = 0; r < kRows; ++r) {
            int32_t word;
            __builtin_memcpy(&word, a + r * stride, 4);
            const __m512i x = _mm512_set1_epi32(word);
            for (int c = 0; c < 4; ++c) kMultiplyAdd(acc[r][c], w[c], x);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < 4; ++c) _mm512_storeu_si512(out + r * kPanel + c * 16, acc[r][c]);
}

template <int kRows, void (*kMultiplyAdd)(__m512i&, __m512i, __m512i)>
static inline void accumulate(const LinearTile& t, const uint8_t* a, const uint8_t* next, const __m512i* start,
                              float* out) {
    if (next == nullptr)
        accumulate_pass<kRows, kMultiplyAdd, false>(t, a, nullptr, start, out);
    else
        accumulate_pass<kRows, kMultiplyAdd, true>(t, a, next, start, out);
}

template <int kRows>
static void dot_int8(const LinearTile& t, const uint8_t* a, const int32_t* row_sum, const uint8_t* next, float* out) {
    __m512i start[kRows];
    for (int r = 0; r < kRows; ++r) start[r] = _mm512_set1_epi32(-128 * row_sum[r]);
    accumulate<kRows, multiply_add_int8>(t, a, next, start, out);
    for (int i = 0; i < kRows * kPanel; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtepi32_ps(_mm512_loadu_si512(out + i)));
}

#elif defined(HOTSEAT_AVX2)

// vpmaddubsw saturates, so the unsigned operand is |activation| and the weight
// takes the activation's sign: both are within 127, and two products of 127 *
// 127 fit in 16 bits.
template <int kRows>
static void dot_int8(const LinearTile& t, const uint8_t* a, const int32_t*, const uint8_t*, float* out) {
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80)), ones = _mm256_set1_epi16(1);
    for (int half = 0; half < 4; ++half) {
        __m256i acc[kRows][2];
        for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
        for (int s = 0; s < t.steps; ++s) {
            const __m256i* p =
                reinterpret_cast<const __m256i*>(t.panel + static_cast<size_t>(s) * kPanelStep + half * 64);
            if (half == 0) fetch_step_ahead(t, a, reinterpret_cast<const uint8_t*>(p));
            const __m256i w0 = _mm256_xor_si256(_mm256_loadu_si256(p), flip);
            const __m256i w1 = _mm256_xor_si256(_mm256_loadu_si256(p + 1), flip);
            for (int r = 0; r < kRows; ++r) {
                int32_t word;
                __builtin_memcpy(&word, a + r * t.activation_stride + static_cast<size_t>(s) * 4, 4);
                const __m256i x = _mm256_set1_epi32(word), size = _mm256_abs_epi8(x);
                const __m256i y0 = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w0, x));
                const __m256i y1 = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w1, x));
                acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(y0, ones));
                acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(y1, ones));
            }
        }
        for (int r = 0; r < kRows; ++r)
            for (int c = 0; c < 2; ++c)
                _mm256_storeu_ps(out + r * kPanel + half * 16 + c * 8, _mm256_cvtepi32_ps(acc[r][c]));
    }
}

#else

template <int kRows>
static void dot_int8(const LinearTile& t, const uint8_t* a, const int32_t*, const uint8_t*, float* out) {
    for (int r = 0; r < kRows; ++r) {
        const int8_t* row = reinterpret_cast<const int8_t*>(a + r * t.activation_stride);
        int32_t acc[kPanel] = {};
        for (int s = 0; s < t.steps; ++s) {
            const uint8_t* p = t.panel + static_cast<size_t>(s) * kPanelStep;
            for (int c = 0; c < kPanel; ++c)
                for (int k = 0; k < 4; ++k) acc[c] += row[s * 4 + k] * (p[c * 4 + k] - 128);
        }
        for (int c = 0; c < kPanel; ++c) out[r * kPanel + c] = static_cast<float>(acc[c]);
    }
}

#endif

#if defined(HOTSEAT_AVX512BF16)

template <int kRows>
static void dot_bf16(const LinearTile& t, const uint8_t* a, const uint8_t* next, float* out) {
    __m512i start[kRows];
    for (int r = 0; r < kRows; ++r) start[r] = _mm512_setzero_si512();
    accumulate<kRows, multiply_add_bf16>(t, a, next, start, out);
}

#else

template <int kRows>
static void dot_bf16(const LinearTile& t, const uint8_t* a, const uint8_t*, float* out) {
    for (int c = 0; c < 4; ++c) {
        V16 acc[kRows];
        for (int r = 0; r < kRows; ++r) acc[r] = set1(0.0f);
        for (int s = 0; s < t.steps; ++s) {
            const uint8_t* p = t.panel + static_cast<size_t>(s) * kPanelStep + c * 64;
            if (c == 0) fetch_step_ahead(t, a, p);
            const Pairs w = load_pairs(p);
            for (int r = 0; r < kRows; ++r) {
                uint32_t word;
                __builtin_memcpy(&word, a + r * t.activation_stride + static_cast<size_t>(s) * 4, 4);
                acc[r] = dot_bf16(acc[r], set_pairs(word), w);
            }
        }
        for (int r = 0; r < kRows; ++r) store(out + r * kPanel + c * 16, acc[r]);
    }
}

#endif

template <int kRows, int kVecs>
static inline void dot_fp32_columns(const LinearTile& t, const uint8_t* a, int column, float* out) {
    V16 acc[kRows][kVecs];
    const float* rows[kRows];
    for (int r = 0; r < kRows; ++r) {
        rows[r] = reinterpret_cast<const float*>(a + r * t.activation_stride);
        for (int c = 0; c < kVecs; ++c) acc[r][c] = set1(0.0f);
    }
    for (int s = 0; s < t.steps; ++s) {
        const float* p = reinterpret_cast<const float*>(t.panel + static_cast<size_t>(s) * kPanelStep) + column;
        if constexpr (kVecs * 16 < kPanel)
            if (column == 0) fetch_step_ahead(t, a, reinterpret_cast<const uint8_t*>(p));
        V16 w[kVecs];
        for (int c = 0; c < kVecs; ++c) w[c] = load(p + c * 16);
        for (int r = 0; r < kRows; ++r) {
            const V16 x = set1(rows[r][s]);
            for (int c = 0; c < kVecs; ++c) acc[r][c] = fma(x, w[c], acc[r][c]);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kVecs; ++c) store(out + r * kPanel + column + c * 16, acc[r][c]);
}

template <int kRows>
static void dot_fp32(const LinearTile& t, const uint8_t* a, float* out) {
    for (int column = 0; column < kPanel; column += kTileVecs * 16)
        dot_fp32_columns<kRows, kTileVecs>(t, a, column, out);
}

// sums[kPanel] of row `r` to outputs.
static inline void finish_row(const LinearTile& t, int r, const float* sums) {
    alignas(64) float y[kPanel];
    if (t.mode == WeightMode::int8) {
        const V16 scale = set1(t.row_scale[r]);
        for (int c = 0; c < kPanel; c += 16) store(y + c, mul(load(sums + c), mul(scale, load(t.column_scale + c))));
    } else {
        for (int c = 0; c < kPanel; c += 16) store(y + c, load(sums + c));
    }
    int columns = t.columns;
    if (t.epilogue == Epilogue::swiglu) {
        columns /= 2;
        for (int c = 0; c < kPanel / 2; c += 16) store(y + c, mul(silu(load(y + c)), load(y + kPanel / 2 + c)));
    }
    float* out = t.out + r * t.out_stride;
    int c = 0;
    if (t.epilogue == Epilogue::add) {
        for (; c + 16 <= columns; c += 16) store(out + c, add(load(out + c), load(y + c)));
        for (; c < columns; ++c) out[c] += y[c];
    } else {
        for (; c + 16 <= columns; c += 16) store(out + c, load(y + c));
        for (; c < columns; ++c) out[c] = y[c];
    }
}

template <int kRows>
static void linear_rows(const LinearTile& t, int row, const uint8_t* next) {
    alignas(64) float sums[kRows * kPanel];
    const uint8_t* a = t.activations + row * t.activation_stride;
    switch (t.mode) {
        case WeightMode::int8:
            dot_int8<kRows>(t, a, t.row_sum + row, next, sums);
            break;
        case WeightMode::bf16:
            dot_bf16<kRows>(t, a, next, sums);
            break;
        case WeightMode::fp32:
            dot_fp32<kRows>(t, a, sums);
            break;
        case WeightMode::grouped:
            return;  // has its own kernel, see grouped.h
    }
    for (int r = 0; r < kRows; ++r) finish_row(t, row + r, sums + r * kPanel);
}

// Passes over the panel, of nearly equal numbers of rows.
static void linear(const LinearTile& t) {
    const int num_passes = (t.rows + kTileRows - 1) / kTileRows;
    for (int pass = 0; pass < num_passes; ++pass) {
        const int row = t.rows * pass / num_passes, count = t.rows * (pass + 1) / num_passes - row;
        const uint8_t* next = next_to_fetch(t, pass, num_passes);
        if constexpr (kTileRows >= 6)
            if (count == 6) linear_rows<6>(t, row, next);
        if constexpr (kTileRows >= 5)
            if (count == 5) linear_rows<5>(t, row, next);
        if constexpr (kTileRows >= 4)
            if (count == 4) linear_rows<4>(t, row, next);
        if constexpr (kTileRows >= 3)
            if (count == 3) linear_rows<3>(t, row, next);
        if (count == 2) linear_rows<2>(t, row, next);
        if (count == 1) linear_rows<1>(t, row, next);
    }
}

}  // namespace hotseat::HOTSEAT_ISA
