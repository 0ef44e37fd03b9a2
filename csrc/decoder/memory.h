// Page-aligned memory from the operating system: zero at first touch, in huge
// pages where the kernel grants them.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

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

// A part of an arena, which owns it.
class Slice {
public:
    Slice() = default;
    Slice(void* data, size_t num_bytes) : data_(data), num_bytes_(num_bytes) {}

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    size_t size() const { return num_bytes_; }

private:
    void* data_ = nullptr;
    size_t num_bytes_ = 0;
};

// Memory that is handed out in slices and freed as a whole. Slices lie side by
// side in large areas: alone, most would be too small for huge pages, and a
// stream through small pages is a third slower.
class Arena {
public:
    Slice take(size_t num_bytes);  // throws std::bad_alloc; starts at a multiple of 64

private:
    std::vector<Memory> areas_;
    size_t used_ = 0;  // bytes of the last area
};

}  // namespace hotseat
