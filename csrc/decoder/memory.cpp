#include "decoder/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace hotseat {

Memory::Memory(size_t num_bytes) : num_bytes_(num_bytes) {
    if (num_bytes == 0) return;
    data_ = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
        data_ = nullptr;
        throw std::bad_alloc();
    }
    madvise(data_, num_bytes, MADV_HUGEPAGE);  // a wish only
}

Slice Arena::take(size_t num_bytes) {
    constexpr size_t kAreaBytes = size_t{64} << 20, kAlignment = 64;
    if (areas_.empty() || areas_.back().size() - used_ < num_bytes) {
        areas_.emplace_back(std::max(num_bytes, kAreaBytes));
        used_ = 0;
    }
    const Slice slice(areas_.back().as<uint8_t>() + used_, num_bytes);
    used_ = std::min(areas_.back().size(), (used_ + num_bytes + kAlignment - 1) / kAlignment * kAlignment);
    return slice;
}

Memory::~Memory() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
}

}  // namespace hotseat
