// The most probable tokens of a row, in order, without sorting all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hotseat {

// Candidates in the order of the definition: descending x, ascending id. A
// flat distribution under top_p near 1 keeps most of the vocabulary, and
// sorting that would take longer than the rest of the step. Instead the
// candidates are put into buckets by their distance from the largest x, and
// only the one bucket that a cut or a draw falls into is split further. The
// result is that of a sort, whatever the values; the time is linear.
class Head {
public:
    // Takes `ids` over and orders them; x[id] <= peak for each of them.
    void assign(std::vector<int32_t>& ids, const float* x, float peak, const int32_t* weights);

    size_t size() const { return size_; }
    // Keep the first k.
    void keep(size_t k);
    // Keep the fewest whose weight reaches `threshold`; at least one.
    void keep_weight(double threshold);
    // The first whose weight and that of all before it exceeds `target`; the
    // last one if there is none.
    int32_t draw(double target);
    int64_t weight() const;

private:
    template <class Reached>
    size_t find(Reached&& reached);
    template <class Reached>
    size_t find_within(size_t begin, size_t end, int64_t sum, Reached&& reached);
    bool comes_before(int32_t a, int32_t b) const { return x_[a] > x_[b] || (x_[a] == x_[b] && a < b); }
    int bucket_of(int32_t id) const;

    std::vector<int32_t>* ids_ = nullptr;
    const float* x_ = nullptr;
    const int32_t* weights_ = nullptr;
    float peak_ = 0.0f;
    size_t size_ = 0;
    bool is_sorted_ = true;         // few candidates: no buckets
    std::vector<uint32_t> begins_;  // of each bucket in ids; one more for the end
    std::vector<int32_t> spread_;   // ids before they are put into buckets
};

}  // namespace hotseat
