// The table of sampling parameters, a structured NumPy array, as an array of SeatSampling.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <iterator>
#include <string>
#include <type_traits>

#include "bindings/arrays.h"
#include "decoder/step.h"

namespace hotseat {

struct FieldLayout {
    const char* name;
    char kind;  // of NumPy: u, i or f
    size_t bytes;
    size_t offset;
};

template <class T>
constexpr char kNumpyKind = std::is_floating_point_v<T> ? 'f'
                            : std::is_signed_v<T>       ? 'i'
                                                        : 'u';

#define HOTSEAT_FIELD(name) \
    {#name, kNumpyKind<decltype(SeatSampling::name)>, sizeof(SeatSampling::name), offsetof(SeatSampling, name)}
inline constexpr FieldLayout kSamplingFields[] = {
    HOTSEAT_FIELD(seed),
    HOTSEAT_FIELD(temperature),
    HOTSEAT_FIELD(top_p),
    HOTSEAT_FIELD(min_p),
    HOTSEAT_FIELD(presence_penalty),
    HOTSEAT_FIELD(frequency_penalty),
    HOTSEAT_FIELD(repetition_penalty),
    HOTSEAT_FIELD(top_k),
    HOTSEAT_FIELD(min_tokens),
    HOTSEAT_FIELD(num_logprobs),
    HOTSEAT_FIELD(num_prompt_logprobs),
    HOTSEAT_FIELD(has_penalties),
};
#undef HOTSEAT_FIELD

// The array "sampling" of a dictionary, with an entry for each seat. Its dtype must be SeatSampling, field by field.
inline const SeatSampling* sampling_in(const nanobind::dict& arrays, size_t num_seats) {
    namespace nb = nanobind;
    if (!arrays.contains("sampling")) refuse("there is no array sampling");
    const nb::object array = arrays["sampling"], dtype = array.attr("dtype");
    const nb::object fields = dtype.attr("fields");
    if (fields.is_none() || nb::len(fields) != std::size(kSamplingFields) ||
        nb::cast<size_t>(dtype.attr("itemsize")) != sizeof(SeatSampling))
        refuse("sampling has not the fields of SeatSampling");
    for (const FieldLayout& layout : kSamplingFields) {
        const nb::object field = fields.attr("get")(layout.name);
        if (field.is_none()) refuse(std::string("sampling has no field ") + layout.name);
        if (nb::cast<std::string>(field[0].attr("kind")) != std::string(1, layout.kind) ||
            nb::cast<size_t>(field[0].attr("itemsize")) != layout.bytes)
            refuse(std::string("sampling has another type of ") + layout.name);
        if (nb::cast<size_t>(field[1]) != layout.offset)
            refuse(std::string("sampling has ") + layout.name + " at another place");
    }
    nb::dict bytes;
    bytes["sampling"] = array.attr("view")("u1");
    return reinterpret_cast<const SeatSampling*>(
        checked_array<uint8_t>(bytes, "sampling", {num_seats * sizeof(SeatSampling)}).data());
}

}  // namespace hotseat
