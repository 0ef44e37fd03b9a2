// The most that an instruction set can do on this machine: reading memory, and
// the dot product of each weight mode with all operands in registers. The
// benchmark compares kernels with these; no step calls them.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// num_bytes is a multiple of 256.
static float read_memory(const uint8_t* data, size_t num_bytes) {
    V16 largest[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
    for (size_t i = 0; i < num_bytes; i += 256)
        for (int j = 0; j < 4; ++j)
            largest[j] = max(load(reinterpret_cast<const float*>(data + i + j * 64)), largest[j]);
    return reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
}

// Chains enough to hide the latency, few enough for the registers. Their starts
// come from memory, else the compiler would find out that they are equal.
static int64_t multiply_fp32(int64_t rounds, float* state) {
    constexpr int kChains = kTileVecs == 4 ? 16 : 5;
    V16 acc[kChains];
    const V16 x = set1(state[0]), w = load(state);
    for (int c = 0; c < kChains; ++c) acc[c] = load(state + c * 16);
    for (int64_t i = 0; i < rounds; ++i)
        for (int c = 0; c < kChains; ++c) acc[c] = fma(x, w, acc[c]);
    for (int c = 0; c < kChains; ++c) store(state + c * 16, acc[c]);
    return rounds * kChains * 16 * 2;
}

#if defined(HOTSEAT_AVX512)

template <void (*kMultiplyAdd)(__m512i&, __m512i, __m512i)>
static int64_t multiply_words(int values_per_word, int64_t rounds, float* state) {
    __m512i acc[kTileRows][4], w[4];
    const __m512i x = _mm512_loadu_si512(state);
    for (int c = 0; c < 4; ++c) w[c] = _mm512_loadu_si512(state + c * 16);
    for (int r = 0; r < kTileRows; ++r)
        for (int c = 0; c < 4; ++c) acc[r][c] = _mm512_loadu_si512(state + (r * 4 + c) * 16);
    for (int64_t i = 0; i < rounds; ++i)
        for (int r = 0; r < kTileRows; ++r)
            for (int c = 0; c < 4; ++c) kMultiplyAdd(acc[r][c], w[c], x);
    for (int r = 0; r < kTileRows; ++r)
        for (int c = 0; c < 4; ++c) _mm512_storeu_si512(state + (r * 4 + c) * 16, acc[r][c]);
    return rounds * kTileRows * 4 * 16 * values_per_word * 2;
}
static int64_t multiply_int8(int64_t rounds, float* state) {
    return multiply_words<multiply_add_int8>(4, rounds, state);
}

#elif defined(HOTSEAT_AVX2)

// The three instructions that a product cannot do without; what the kernel does
// about signs comes on top.
static int64_t multiply_int8(int64_t rounds, float* state) {
    constexpr int kAccumulators = 10;
    __m256i acc[kAccumulators];
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(state)), ones = _mm256_set1_epi16(1);
    __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(state + 8));
    for (int c = 0; c < kAccumulators; ++c)
        acc[c] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(state + c * 8));
    for (int64_t i = 0; i < rounds; ++i)
        for (int c = 0; c < kAccumulators; ++c) {
            asm("" : "+x"(w));  // as if it were another one, so that the product is not kept
            acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), ones));
        }
    for (int c = 0; c < kAccumulators; ++c) _mm256_storeu_si256(reinterpret_cast<__m256i*>(state + c * 8), acc[c]);
    return rounds * kAccumulators * 32 * 2;
}

#else

// Without vector registers to speak of: the kernel itself, on a panel in the nearest cache.
static int64_t multiply_int8(int64_t rounds, float* state) {
    constexpr int kSteps = 16;
    float sums[kTileRows * kPanel];
    LinearTile tile{};
    tile.panel = reinterpret_cast<const uint8_t*>(state);
    tile.steps = kSteps;
    for (int64_t i = 0; i < rounds; ++i) {
        dot_int8<kTileRows>(tile, tile.panel, nullptr, nullptr, sums);
        state[i % kPanel] = sums[i % kPanel];
    }
    return rounds * kTileRows * kSteps * kPanelStep * 2;
}

#endif

static int64_t multiply_in_registers(WeightMode mode, int64_t rounds, float* state) {
    if (mode == WeightMode::int8) return multiply_int8(rounds, state);
#if defined(HOTSEAT_AVX512BF16)
    if (mode == WeightMode::bf16) return multiply_words<multiply_add_bf16>(2, rounds, state);
#endif
    return multiply_fp32(rounds, state);
}

}  // namespace hotseat::HOTSEAT_ISA
