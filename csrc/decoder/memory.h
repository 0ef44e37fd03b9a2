// Page-aligned memory from the operating system: zero at first touch, in huge
// pages where the kernel grants them.
#pragma once
#include <cstddef>
#include <utility>

namespace hotseat {

class Memory {
public:
    Memory() = default;
    explicit Memory(size_t num_bytes);  // throws std::bad_alloc
    ~Memory();
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(num_bytes_, other.num_bytes_);
        return *this;
    }

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    size_t size() const { return num_bytes_; }

private:
    void* data_ = nullptr;
    size_t num_bytes_ = 0;
};

}  // namespace hotseat
