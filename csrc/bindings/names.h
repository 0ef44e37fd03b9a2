// Names that Python uses, and what they mean here.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "kernels/table.h"

namespace hotseat {

// Throw std::invalid_argument for a name that does not exist here.
Kind kind_named(const std::string& name);
WeightMode mode_named(const std::string& name);
const KernelTable& table_named(const std::string& isa);

// Other files' parts of the module.
void bind_bench(nanobind::module_& module);

}  // namespace hotseat
