#include "decoder/kv_cache.h"

#include <algorithm>

namespace hotseat {

KvCache::KvCache(const KvShape& shape) : shape_(shape), head_dim_padded_((shape.head_dim + 15) / 16 * 16) {
    const size_t item = shape.is_fp32 ? 4 : 2;
    key_group_bytes_ = item * kGroup * (shape.is_fp32 ? shape.head_dim : even_head_dim(shape.head_dim));
    value_group_bytes_ = item * kGroup * head_dim_padded_;
    cell_bytes_ = (key_group_bytes_ + value_group_bytes_) * (shape.block_size / kGroup);
    memory_ = Memory(cell_bytes_ * shape.num_kv_heads * shape.num_blocks * shape.num_layers);
}

const uint8_t* KvCache::key_group(int layer, int head, int block, int group) const {
    const size_t cell = (static_cast<size_t>(layer) * shape_.num_blocks + block) * shape_.num_kv_heads + head;
    return memory_.as<uint8_t>() + cell * cell_bytes_ + group * key_group_bytes_;
}

const uint8_t* KvCache::value_group(int layer, int head, int block, int group) const {
    return key_group(layer, head, block, shape_.block_size / kGroup) + group * value_group_bytes_;
}

void KvCache::fetch(int layer, int head, const int32_t* table, int position) const {
    const int block = table[position / shape_.block_size], within = position % shape_.block_size;
    const uint8_t* keys = key_group(layer, head, block, within / kGroup);
    const uint8_t* values = value_group(layer, head, block, within / kGroup);
    const size_t row = shape_.is_fp32 ? within % kGroup : within % kGroup / 2, row_bytes = head_dim_padded_ * 4;
    for (size_t i = 0; i < key_group_bytes_; i += 64) __builtin_prefetch(keys + i, 1);
    for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(values + row * row_bytes + i, 1);
}

void KvCache::write(const KernelTable& kernels, int layer, int head, const int32_t* table, int position,
                    const float* key, const float* value) const {
    const int block = table[position / shape_.block_size], within = position % shape_.block_size;
    const int group = within / kGroup, lane = within % kGroup;
    auto* keys = const_cast<uint8_t*>(key_group(layer, head, block, group));
    auto* values = const_cast<uint8_t*>(value_group(layer, head, block, group));
    if (shape_.is_fp32) {
        kernels.write_key_fp32(key, shape_.head_dim, reinterpret_cast<float*>(keys), lane);
        kernels.write_value_fp32(value, shape_.head_dim, head_dim_padded_, reinterpret_cast<float*>(values), lane);
    } else {
        kernels.write_key_bf16(key, shape_.head_dim, reinterpret_cast<uint16_t*>(keys), lane);
        kernels.write_value_bf16(value, shape_.head_dim, head_dim_padded_, reinterpret_cast<uint16_t*>(values), lane);
    }
}

SpanView KvCache::view(int layer, int head, const int32_t* table, int span, int length) const {
    SpanView view;
    view.num_positions = std::min(kSpan, length - span * kSpan);
    const int num_groups = (view.num_positions + kGroup - 1) / kGroup;
    for (int g = 0; g < num_groups; ++g) {
        const int position = span * kSpan + g * kGroup;
        const int block = table[position / shape_.block_size];
        const int group = position % shape_.block_size / kGroup;
        view.keys[g] = key_group(layer, head, block, group);
        view.values[g] = value_group(layer, head, block, group);
    }
    return view;
}

}  // namespace hotseat
