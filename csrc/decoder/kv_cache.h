// The paged KV cache: for every block and layer in it one cell a KV head, keys before
// values. The layers of one block table share its blocks, each has its own place there.
//
//     place    [num_blocks][num_kv_heads] cells
//     cell     [block_size / 16] tiles of keys, then as many of values, see KvPartition
//
// A tile of 16 positions never leaves its cell, and head_dim_padded is
// head_dim rounded up to a multiple of 16.
#pragma once
#include <vector>

#include "decoder/memory.h"
#include "kernels/table.h"

namespace hotseat {

struct KvShape {
    std::vector<int> layer_tables;  // [num_layers]
    int num_kv_heads;
    int head_dim;
    int num_blocks;
    int block_size;  // a multiple of 16
    bool is_fp32;
};

class KvCache {
public:
    explicit KvCache(const KvShape& shape);

    int head_dim_padded() const { return head_dim_padded_; }
    size_t num_bytes() const { return memory_.size(); }

    // Fetch what `write` will write a little later: a key alone lies in a line for each pair of dimensions.
    void fetch(int layer, int head, const int32_t* table, int position) const;
    // Write one position of one head. `table` is the sequence's block table.
    void write(const KernelTable& kernels, int layer, int head, const int32_t* table, int position, const float* key,
               const float* value) const;
    // Describe positions [partition * 256, min(partition * 256 + 256, length)). Tiles before the position `first` are
    // zeros: nobody sees them, and their blocks may be another sequence's.
    KvPartition view(int layer, int head, const int32_t* table, int partition, int first, int length) const;

private:
    const uint8_t* key_tile(int layer, int head, int block, int tile) const;
    const uint8_t* value_tile(int layer, int head, int block, int tile) const;

    KvShape shape_;
    int head_dim_padded_;
    size_t key_tile_bytes_;
    size_t value_tile_bytes_;
    size_t cell_bytes_;
    std::vector<int> place_of_;  // [num_layers]
    Memory memory_;
    Memory zeros_;  // a tile
};

}  // namespace hotseat
