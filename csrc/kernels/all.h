// Included once by each isa_*.cpp after its simd header: compiles every kernel
// in the namespace HOTSEAT_ISA. Nothing here may use inline functions of the
// standard library: the linker would keep one copy for all sets.
#pragma once
#include "kernels/table.h"
// clang-format off
#include "kernels/math.h"
#include "kernels/elementwise.h"
#include "kernels/dequantize.h"
#include "kernels/linear.h"
#include "kernels/quant_groups.h"
#include "kernels/pack_groups.h"
#if defined(HOTSEAT_AVX2) || defined(HOTSEAT_AVX512)
#include "kernels/codes.h"
#include "kernels/group_source.h"
#include "kernels/grouped.h"
#else
#include "kernels/grouped_scalar.h"
#endif
#include "kernels/attention.h"
#include "kernels/attention_fp32.h"
#include "kernels/attention_bf16.h"
#include "kernels/vocabulary.h"
#include "kernels/limits.h"
// clang-format on

namespace hotseat::HOTSEAT_ISA {

static constexpr KernelTable make_table(const char* name) {
    return {
        .name = name,
        .dequantize_row = dequantize_row,
        .hadamard = hadamard,
        .quantize = quantize,
        .to_bf16 = to_bf16,
        .rms_norm = rms_norm,
        .layer_norm = layer_norm,
        .activate = activate,
        .exponentials = exponentials,
        .sigmoid = sigmoid_row,
        .softcap = softcap_row,
        .scale = scale_row,
        .add_scaled = add_scaled,
        .rope = rope,
        .linear = linear,
        .dot_bf16 = dot_bf16_lanes,
        .unpack_groups = unpack_groups,
        .pack_groups = pack_groups,
        .quantize_groups = quantize_groups,
        .grouped_sums = grouped_sums,
        .finish_grouped = finish_grouped,
        .write_key_bf16 = write_key_bf16,
        .write_key_fp32 = write_key_fp32,
        .write_value_bf16 = write_value_bf16,
        .write_value_fp32 = write_value_fp32,
        .attention_bf16 = attention_bf16,
        .attention_fp32 = attention_fp32,
        .merge_partitions = merge_partitions,
        .divide = divide,
        .all_finite = all_finite,
        .maximum = maximum,
        .sum_of_exponentials = sum_of_exponentials,
        .exp_weights = exp_weights,
        .divide_all = divide_all,
        .read_memory = read_memory,
        .multiply_in_registers = multiply_in_registers,
    };
}

}  // namespace hotseat::HOTSEAT_ISA
