// Arrays that come from Python, checked for type, shape and range, so that no
// caller makes the decoder read or write beside them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "decoder/decoder.h"
#include "decoder/flatten.h"

namespace hotseat {

[[noreturn]] inline void refuse(const std::string& reason) { throw std::invalid_argument(reason); }

// The array `name` of a dictionary, without conversion; each dimension has at
// least `least` entries. The array must stay alive as long as it is bound.
template <class T>
nanobind::ndarray<T, nanobind::c_contig, nanobind::device::cpu> checked_array(const nanobind::dict& arrays,
                                                                              const char* name,
                                                                              std::initializer_list<size_t> least) {
    nanobind::ndarray<T, nanobind::c_contig, nanobind::device::cpu> array;
    if (!arrays.contains(name)) refuse(std::string("there is no array ") + name);
    if (!nanobind::try_cast(arrays[name], array, false) || array.ndim() != least.size())
        refuse(std::string(name) + " is no contiguous array of its type with " + std::to_string(least.size()) +
               " dimensions");
    size_t axis = 0;
    for (size_t count : least) {
        if (array.shape(axis) < count)
            refuse(std::string(name) + " has " + std::to_string(array.shape(axis)) + " entries in dimension " +
                   std::to_string(axis) + ", needs " + std::to_string(count));
        ++axis;
    }
    return array;
}

inline void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
        refuse(std::string(what) + " is " + std::to_string(value) + ", must be from " + std::to_string(low) + " to " +
               std::to_string(high));
}

// Refuse a chunk whose seat refers to memory that is not there. What concerns the
// chunk alone is left to the Flattener.
inline void check_chunk(const Chunk& chunk, const Sequences& sequences, const SeatArrays& seats,
                        const ResultArrays& results, const DecoderLimits& limits, int vocab_size, int num_tables) {
    if (chunk.seat < 0 || chunk.seat >= sequences.num_seats) return;
    const int seat = chunk.seat;
    const SeatSampling& sampling = seats.sampling[seat];
    check_range("a seat's number of tokens", sequences.num_tokens[seat], 0, static_cast<int64_t>(sequences.stride));
    check_range("a seat's number of prompt tokens", sequences.num_prompt_tokens[seat], 0, sequences.num_tokens[seat]);
    const int num_drafts = sequences.num_drafts[seat], num_tokens = sequences.num_tokens[seat] + num_drafts;
    check_range("a seat's number of drafts", num_drafts, 0, limits.max_num_drafts);
    check_range("a seat's number of tokens with drafts", num_tokens, 0, static_cast<int64_t>(sequences.stride));
    if (num_drafts > 0)
        check_range("a seat's first draft", seats.first_draft[seat], 0, limits.max_num_drafts - num_drafts);
    check_range("the end of a chunk", chunk.end, 1, limits.max_model_len);
    check_range("a seat's number of logprobs", sampling.num_logprobs, -1, results.sampled.top_stride);
    check_range("a seat's number of prompt logprobs", sampling.num_prompt_logprobs, -1, results.prompt.top_stride);
    check_range("top_k", sampling.top_k, 0, INT32_MAX);
    // Penalties count every token of the sequence, all else reads those of the chunk.
    const bool is_counted = sampling.has_penalties != 0;
    const int32_t* tokens = sequences.tokens + seat * sequences.stride;
    const int end = is_counted ? num_tokens : std::min(chunk.end, num_tokens - 1) + 1;
    for (int i = is_counted ? 0 : std::max(chunk.start, 0); i < end; ++i)
        check_range("a token id", tokens[i], 0, vocab_size - 1);
    const int num_blocks = (chunk.end + limits.block_size - 1) / limits.block_size;
    check_range("the number of blocks of a chunk", num_blocks, 1, static_cast<int64_t>(seats.blocks_stride));
    for (int table = 0; table < num_tables; ++table) {
        const size_t row = static_cast<size_t>(table) * limits.max_num_seqs + seat;
        const int32_t* blocks = seats.block_tables + row * seats.blocks_stride;
        for (int i = 0; i < num_blocks; ++i) check_range("a block id", blocks[i], 0, limits.num_kv_blocks - 1);
    }
}

// Pointers into a dictionary of arrays whose first dimension is `rows` or more.
struct ArraysOf {
    const nanobind::dict& arrays;
    size_t rows;

    template <class T>
    T* of(const char* name, size_t more = 0) const {
        return checked_array<T>(arrays, name, {rows + more}).data();
    }
    template <class T>
    T* matrix(const char* name, size_t columns) const {
        return checked_array<T>(arrays, name, {rows, columns}).data();
    }
    template <class T>
    size_t stride(const char* name) const {
        return checked_array<T>(arrays, name, {rows, 0}).shape(1);
    }
};

inline LogprobArrays logprobs_in(const nanobind::dict& arrays, size_t rows) {
    const ArraysOf a{arrays, rows};
    const size_t columns = a.stride<int32_t>("top_ids");
    return {a.of<float>("logprob"), a.of<int32_t>("rank"), a.matrix<int32_t>("top_ids", columns),
            a.matrix<float>("top_logprobs", columns), columns};
}

inline RaggedArrays ragged_in(const nanobind::dict& arrays, int num_seats, int vocab_size) {
    const int32_t* offsets = checked_array<int32_t>(arrays, "offsets", {static_cast<size_t>(num_seats) + 1}).data();
    const auto ids = checked_array<int32_t>(arrays, "ids", {0});
    check_range("the first offset", offsets[0], 0, 0);
    for (int i = 0; i < num_seats; ++i)
        check_range("an offset", offsets[i + 1], offsets[i], static_cast<int64_t>(ids.shape(0)));
    for (size_t i = 0; i < ids.shape(0); ++i) check_range("a token id", ids.data()[i], 0, vocab_size - 1);
    return {offsets, ids.data(), checked_array<float>(arrays, "values", {ids.shape(0)}).data()};
}

}  // namespace hotseat
