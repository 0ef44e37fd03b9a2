#include "decoder/memory.h"

#include <sys/mman.h>

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

Memory::~Memory() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
}

}  // namespace hotseat
