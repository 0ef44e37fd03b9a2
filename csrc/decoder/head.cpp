#include "decoder/head.h"

#include <algorithm>

namespace hotseat {

namespace {

constexpr size_t kSorted = 1024;  // up to so many, a sort is faster
constexpr int kBuckets = 4096;
constexpr float kBucketsPerUnit = 128.0f;  // 32 units: what is farther away has no weight

}  // namespace

int Head::bucket_of(int32_t id) const {
    // Subtraction and product round monotonically, so that a larger x never
    // comes into a later bucket. (An infinite distance is cut by the minimum.)
    return static_cast<int>(std::min((peak_ - x_[id]) * kBucketsPerUnit, static_cast<float>(kBuckets - 1)));
}

void Head::assign(std::vector<int32_t>& ids, const float* x, float peak, const int32_t* weights) {
    ids_ = &ids, x_ = x, peak_ = peak, weights_ = weights, size_ = ids.size();
    is_sorted_ = size_ <= kSorted;
    if (is_sorted_) {
        std::sort(ids.begin(), ids.end(), [this](int32_t a, int32_t b) { return comes_before(a, b); });
        return;
    }
    begins_.assign(kBuckets + 1, 0);
    for (int32_t id : ids) ++begins_[bucket_of(id) + 1];
    for (int b = 0; b < kBuckets; ++b) begins_[b + 1] += begins_[b];
    spread_ = ids;
    for (int32_t id : spread_) ids[begins_[bucket_of(id)]++] = id;
    for (int b = kBuckets; b > 0; --b) begins_[b] = begins_[b - 1];
    begins_[0] = 0;
}

void Head::keep(size_t k) {
    if (k >= size_) return;
    if (!is_sorted_) {
        // The bucket that the cut falls into: the last one that begins at or before k.
        const auto next = std::upper_bound(begins_.begin(), begins_.end(), static_cast<uint32_t>(k));
        const auto first = ids_->begin();
        std::nth_element(first + *(next - 1), first + k, first + std::min<size_t>(*next, size_),
                         [this](int32_t a, int32_t b) { return comes_before(a, b); });
    }
    size_ = k;
}

void Head::keep_weight(double threshold) {
    if (size_ == 0) return;
    size_ = 1 + find([threshold](int64_t sum) { return static_cast<double>(sum) >= threshold; });
}

int32_t Head::draw(double target) {
    return (*ids_)[find([target](int64_t sum) { return static_cast<double>(sum) > target; })];
}

int64_t Head::weight() const {
    int64_t sum = 0;
    for (size_t i = 0; i < size_; ++i) sum += weights_[(*ids_)[i]];
    return sum;
}

// Index of the first candidate at which `reached` holds for the sum of the
// weights up to it, the last index if there is none. Puts what comes before it
// before it.
template <class Reached>
size_t Head::find(Reached&& reached) {
    int64_t sum = 0;
    if (is_sorted_) {
        for (size_t i = 0; i + 1 < size_; ++i) {
            sum += weights_[(*ids_)[i]];
            if (reached(sum)) return i;
        }
        return size_ - 1;
    }
    size_t last = 0;  // of the buckets that hold something, the one looked at last
    for (int b = 0; b < kBuckets; ++b) {
        const size_t begin = begins_[b], end = std::min<size_t>(begins_[b + 1], size_);
        if (begin >= end) continue;
        last = begin;
        int64_t weight = 0;
        for (size_t i = begin; i < end; ++i) weight += weights_[(*ids_)[i]];
        if (reached(sum + weight)) return find_within(begin, end, sum, reached);
        sum += weight;
    }
    // Not reached: the last candidate, in order.
    return find_within(last, size_, 0, [](int64_t) { return false; });
}

// The same within one bucket; `sum` is the weight of all before it. Halves the
// range until one is left: linear, since each half is half as long.
template <class Reached>
size_t Head::find_within(size_t begin, size_t end, int64_t sum, Reached&& reached) {
    const auto first = ids_->begin();
    while (end - begin > 1) {
        const size_t middle = begin + (end - begin) / 2;
        std::nth_element(first + begin, first + middle, first + end,
                         [this](int32_t a, int32_t b) { return comes_before(a, b); });
        int64_t weight = 0;
        for (size_t i = begin; i < middle; ++i) weight += weights_[(*ids_)[i]];
        if (reached(sum + weight)) {
            end = middle;
        } else {
            sum += weight;
            begin = middle;
        }
    }
    return begin;
}

}  // namespace hotseat
