#include "decoder/kv_cache.h"

#include <algorithm>
#include <cstddef>

namespace hotseat {

KvCache::KvCache(const KvShape& shape) : shape_(shape), head_dim_padded_((shape.head_dim + 15) / 16 * 16) {
    const size_t item = shape.is_fp32 ? 4 : 2;
    key_tile_bytes_ = item * kTile * (shape.is_fp32 ? shape.head_dim : even_head_dim(shape.head_dim));
    value_tile_bytes_ = item * kTile * head_dim_padded_;
    cell_bytes_ = (key_tile_bytes_ + value_tile_bytes_) * (shape.block_size / kTile);
    int num_places = 0;
    for (size_t layer = 0; layer < shape.layer_tables.size(); ++layer) {
        const auto begin = shape.layer_tables.begin(), end = begin + static_cast<std::ptrdiff_t>(layer);
        place_of_.push_back(static_cast<int>(std::count(begin, end, shape.layer_tables[layer])));
        num_places = std::max(num_places, place_of_.back() + 1);
    }
    memory_ = Memory(cell_bytes_ * shape.num_kv_heads * shape.num_blocks * num_places);
    zeros_ = Memory(std::max(key_tile_bytes_, value_tile_bytes_));
}

const uint8_t* KvCache::key_tile(int layer, int head, int block, int tile) const {
    const size_t cell =
        (static_cast<size_t>(place_of_[layer]) * shape_.num_blocks + block) * shape_.num_kv_heads + head;
    return memory_.as<uint8_t>() + cell * cell_bytes_ + tile * key_tile_bytes_;
}

const uint8_t* KvCache::value_tile(int layer, int head, int block, int tile) const {
    return key_tile(layer, head, block, shape_.block_size / kTile) + tile * value_tile_bytes_;
}

void KvCache::fetch(int layer, int head, const int32_t* table, int position) const {
    const int block = table[position / shape_.block_size], within = position % shape_.block_size;
    const uint8_t* keys = key_tile(layer, head, block, within / kTile);
    const uint8_t* values = value_tile(layer, head, block, within / kTile);
    const size_t row = shape_.is_fp32 ? within % kTile : within % kTile / 2, row_bytes = head_dim_padded_ * 4;
    for (size_t i = 0; i < key_tile_bytes_; i += 64) __builtin_prefetch(keys + i, 1);
    for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(values + row * row_bytes + i, 1);
}

void KvCache::write(const KernelTable& kernels, int layer, int head, const int32_t* table, int position,
                    const float* key, const float* value) const {
    const int block = table[position / shape_.block_size], within = position % shape_.block_size;
    const int tile = within / kTile, lane = within % kTile;
    auto* keys = const_cast<uint8_t*>(key_tile(layer, head, block, tile));
    auto* values = const_cast<uint8_t*>(value_tile(layer, head, block, tile));
    if (shape_.is_fp32) {
        kernels.write_key_fp32(key, shape_.head_dim, reinterpret_cast<float*>(keys), lane);
        kernels.write_value_fp32(value, shape_.head_dim, head_dim_padded_, reinterpret_cast<float*>(values), lane);
    } else {
        kernels.write_key_bf16(key, shape_.head_dim, reinterpret_cast<uint16_t*>(keys), lane);
        kernels.write_value_bf16(value, shape_.head_dim, head_dim_padded_, reinterpret_cast<uint16_t*>(values), lane);
    }
}

KvPartition KvCache::view(int layer, int head, const int32_t* table, int partition, int first, int length) const {
    KvPartition view;
    view.num_positions = std::min(kPartition, length - partition * kPartition);
    const int num_tiles = (view.num_positions + kTile - 1) / kTile;
    for (int g = 0; g < num_tiles; ++g) {
        const int position = partition * kPartition + g * kTile;
        if (position + kTile <= first) {
            view.keys[g] = view.values[g] = zeros_.as<uint8_t>();
            continue;
        }
        const int block = table[position / shape_.block_size];
        const int tile = position % shape_.block_size / kTile;
        view.keys[g] = key_tile(layer, head, block, tile);
        view.values[g] = value_tile(layer, head, block, tile);
    }
    return view;
}

}  // namespace hotseat
