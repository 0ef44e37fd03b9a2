// What a decoder is, out of the dictionaries that Python describes it with.
#pragma once
#include <nanobind/nanobind.h>

#include "decoder/decoder.h"

namespace hotseat {

// std::invalid_argument names a value that is not known.
DecoderShape shape_in(const nanobind::dict& d);
DecoderLimits limits_in(const nanobind::dict& d);

}  // namespace hotseat
