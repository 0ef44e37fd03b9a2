// Weights in groups to half panels, see quant_format.h; activations to groups; outputs of grouped products.
#pragma once

namespace hotseat::HOTSEAT_ISA {

// Codes of 32 values of one column to their planes, which hold nothing of that column yet.
static void pack_planes(int bits, const uint8_t* codes, uint8_t* planes, int column) {
    constexpr int kBitPlane = kHalfPanel * 4;  // bytes of one bit of 32 values
    const auto put = [&](int start, int bits_here, int shift) {
        const int steps_a_byte = 8 / bits_here;
        for (int i = 0; i < 32; ++i) {
            const int step = i / 4, place = start + step / steps_a_byte * kHalfPanel * 4 + column * 4 + i % 4;
            const int bits_of_code = (codes[i] >> shift) & ((1 << bits_here) - 1);
            const int before = step % steps_a_byte == 0 ? 0 : planes[place];
            planes[place] = static_cast<uint8_t>(before | (bits_of_code << (step % steps_a_byte * bits_here)));
        }
    };
    const int low_bits = bits == 8 ? 8 : bits >= 4 ? 4 : 2, high_bits = bits - low_bits;
    if (high_bits > 0) put(0, high_bits, low_bits);
    put(high_bits * kBitPlane, low_bits, 0);
}

static void pack_groups(Kind kind, const StoredGroups& row, int num_units, uint8_t* half, int column) {
    const QuantFormat f = format_of(kind);
    const int groups = f.is_two_level ? 256 / f.group_size : 0;
    for (int u = 0; u < num_units; ++u, half += f.unit_bytes()) {
        uint8_t* p = half;
        if (f.has_exponents()) {
            p[column] = static_cast<uint8_t>(row.scales[u]);
        } else {
            __builtin_memcpy(p + column * 2, row.scales + u, 2);
            p += kHalfPanel * 2;
            if (f.has_minimum) __builtin_memcpy(p + column * 2, row.minima + u, 2);
            p += f.has_minimum ? kHalfPanel * 2 : 0;
        }
        for (int g = 0; g < groups; ++g) {
            if (f.group_size == 16) {
                p[g / 2 * kHalfPanel * 2 + column * 2 + g % 2] = row.group_scales[u * groups + g];
                continue;
            }
            p[g * kHalfPanel + column] = row.group_scales[u * groups + g];
            if (f.has_minimum) p[(groups + g) * kHalfPanel + column] = row.group_minima[u * groups + g];
        }
        for (int i = 0; i < f.unit() / 32; ++i)
            pack_planes(f.bits, row.codes + static_cast<size_t>(u) * f.unit() + i * 32,
                        half + f.code_start() + i * f.plane_bytes(), column);
    }
}

// The largest magnitude of up to 32 values; `nan_check` becomes NaN where one is NaN or infinite.
static inline float group_peak(const float* x, V16* nan_check) {
    const V16 first = load(x), second = load(x + 16), zero = set1(0.0f);
    *nan_check = fma(second, zero, fma(first, zero, *nan_check));
    return reduce_max(max(abs(first), max(abs(second), zero)));
}

// scale = block_scale * multiplier, codes = round_half_to_even(x / scale). The multiplier is the smallest one that
// leaves codes within 127; the largest of 256 values has the largest multiplier.
static void quantize_group(const float* x, float largest, float peak, bool is_broken, ActivationGroup* out) {
    int multiplier = 1;
    if (!is_broken && largest > 0.0f) {
        const float share = peak * static_cast<float>(kMultiplierLevels) / largest;
        multiplier = static_cast<int>(share);
        if (static_cast<float>(multiplier) < share || multiplier == 0) ++multiplier;
    }
    constexpr float kLevels = 127.0f * kMultiplierLevels;
    // A broken row gets a NaN scale: it stays visibly broken, and only itself.
    const float block_scale = is_broken ? __builtin_nanf("") : largest / kLevels;
    const V16 inverse = set1(is_broken || largest == 0.0f ? 0.0f : kLevels / largest / static_cast<float>(multiplier));
    const V16 low = set1(-127.0f), high = set1(127.0f);
    int half_sums[2];
    for (int half = 0; half < 2; ++half) {
        // min and max also turn NaN into a number, whose conversion is defined.
        const V16 codes = min(max(round_even(mul(load(x + half * 16), inverse)), low), high);
        store_int8(out->codes + half * 16, codes);
        half_sums[half] = static_cast<int>(reduce_add(codes));
    }
    out->multiplier = multiplier;
    out->block_scale = block_scale;
    out->scale = block_scale * static_cast<float>(multiplier);
    out->sum = half_sums[0] + half_sums[1];
    out->scaled_sum = out->scale * static_cast<float>(out->sum);
    for (int half = 0; half < 2; ++half) out->half_sums[half] = static_cast<int16_t>(half_sums[half] * multiplier);
}

static void quantize_groups(const float* x, int n, ActivationGroup* out) {
    for (int start = 0; start < n; start += 256, out += 8) {
        const int count = n - start < 256 ? n - start : 256, num_groups = (count + 31) / 32;
        float padded[32] = {};
        const auto group = [&](int g) {
            if (g * 32 + 32 <= count) return x + start + g * 32;
            for (int i = g * 32; i < count; ++i) padded[i - g * 32] = x[start + i];
            return static_cast<const float*>(padded);
        };
        float peaks[8], largest = 0.0f;
        V16 nan_check = set1(0.0f);
        for (int g = 0; g < num_groups; ++g) {
            peaks[g] = group_peak(group(g), &nan_check);
            largest = peaks[g] > largest ? peaks[g] : largest;
        }
        if (largest < 1e-30f) largest = 0.0f;
        const bool is_broken = !(reduce_add(nan_check) == 0.0f);
        for (int g = 0; g < num_groups; ++g) quantize_group(group(g), largest, peaks[g], is_broken, out + g);
    }
}

// Outputs of one panel from sums[rows][kPanel].
static void finish_grouped(const float* sums, int rows, int columns, Epilogue epilogue, float* out, size_t out_stride) {
    LinearTile t{};
    t.mode = WeightMode::fp32;
    t.columns = columns;
    t.out = out;
    t.out_stride = out_stride;
    t.epilogue = epilogue;
    for (int r = 0; r < rows; ++r) finish_row(t, r, sums + r * kPanel);
}

}  // namespace hotseat::HOTSEAT_ISA
