// The benchmarks' part of the module.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bench/probes.h"
#include "bindings/names.h"

namespace nb = nanobind;

namespace hotseat {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Epilogue epilogue_named(const std::string& name) {
    if (name == "store") return Epilogue::store;
    if (name == "add") return Epilogue::add;
    if (name == "swiglu") return Epilogue::swiglu;
    throw std::invalid_argument("epilogue " + name + " is not one of store, add, swiglu");
}

}  // namespace

void bind_bench(nb::module_& module) {
    nb::class_<LimitProbe>(module, "LimitProbe")
        .def(nb::init<int, size_t>(), nb::arg("threads"), nb::arg("buffer_bytes"),
             nb::call_guard<nb::gil_scoped_release>())
        .def(
            "read_bandwidth",
            [](LimitProbe& self, const std::string& isa) { return self.read_bandwidth(table_named(isa)); },
            nb::arg("isa"), nb::call_guard<nb::gil_scoped_release>(), "Bytes a second.")
        .def(
            "peak",
            [](LimitProbe& self, const std::string& isa, const std::string& dtype) {
                return self.peak(table_named(isa), mode_named(dtype));
            },
            nb::arg("isa"), nb::arg("dtype"), nb::call_guard<nb::gil_scoped_release>(), "Operations a second.");
    nb::class_<LinearProbe>(module, "LinearProbe")
        .def(
            "__init__",
            [](LinearProbe* self, const std::string& isa, const std::string& dtype, int in_features,
               const std::vector<std::string>& kinds, const std::vector<Bytes>& data, const std::string& epilogue,
               int num_copies, int max_rows, int threads) {
                if (kinds.size() != data.size()) throw std::invalid_argument("each matrix has a kind");
                std::vector<StoredMatrix> sources;
                for (size_t i = 0; i < kinds.size(); ++i)
                    sources.push_back(
                        {kind_named(kinds[i]), data[i].data(), data[i].shape(1), static_cast<int>(data[i].shape(0))});
                const nb::gil_scoped_release release;
                new (self) LinearProbe(table_named(isa), mode_named(dtype), in_features, sources,
                                       epilogue_named(epilogue), num_copies, max_rows, threads);
            },
            nb::arg("isa"), nb::arg("dtype"), nb::arg("in_features"), nb::arg("kinds"), nb::arg("data"),
            nb::arg("epilogue"), nb::arg("num_copies"), nb::arg("max_rows"), nb::arg("threads"))
        .def(
            "seconds",
            [](LinearProbe& self, const std::string& isa, int rows, int count) {
                return self.seconds(table_named(isa), rows, count);
            },
            nb::arg("isa"), nb::arg("rows"), nb::arg("count"), nb::call_guard<nb::gil_scoped_release>(),
            "Seconds a multiplication.")
        .def_prop_ro("weight_bytes", &LinearProbe::weight_bytes);
}

}  // namespace hotseat
