// The only place that knows Python: check arrays, keep them alive, release the
// GIL, call the decoder.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/arrays.h"
#include "bindings/names.h"
#include "bindings/sampling.h"
#include "bindings/shape.h"
#include "decoder/decoder.h"
#include "decoder/flatten.h"
#include "decoder/machine.h"
#include "kernels/table.h"

namespace nb = nanobind;

namespace hotseat {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Fields = nb::typed<nb::dict, nb::str, nb::any>;  // values or arrays by name

std::vector<std::string> names_of(const std::vector<const KernelTable*>& tables) {
    std::vector<std::string> names;
    for (const KernelTable* table : tables) names.emplace_back(table->name);
    return names;
}

StoredMatrix matrix_of(const std::string& kind, const Bytes& data) {
    return {kind_named(kind), data.data(), data.shape(1), static_cast<int>(data.shape(0))};
}

std::vector<float> vector_of(const Floats& data) { return {data.data(), data.data() + data.shape(0)}; }

SeatArrays seats_in(const nb::dict& arrays, const DecoderLimits& limits, int vocab_size, int num_tables) {
    const ArraysOf a{arrays, static_cast<size_t>(limits.max_num_seqs)};
    const ArraysOf tables{arrays, static_cast<size_t>(limits.max_num_seqs) * num_tables};
    return {
        .tokens = a.matrix<int32_t>("tokens", 1),
        .tokens_stride = a.stride<int32_t>("tokens"),
        .num_tokens = a.of<int32_t>("num_tokens"),
        .num_prompt_tokens = a.of<int32_t>("num_prompt_tokens"),
        .block_tables = tables.matrix<int32_t>("block_tables", 1),
        .blocks_stride = tables.stride<int32_t>("block_tables"),
        .sampling = sampling_in(arrays, limits.max_num_seqs),
        .token_masks = checked_array<uint32_t>(arrays, "token_masks",
                                               {static_cast<size_t>(limits.max_num_seqs + limits.max_num_drafts),
                                                (static_cast<size_t>(vocab_size) + 31) / 32})
                           .data(),
        .mask_words = a.stride<uint32_t>("token_masks"),
        .has_mask = a.of<uint8_t>("has_mask"),
        .num_seats = limits.max_num_seqs,
        .first_draft = a.of<int32_t>("first_draft"),
    };
}

Sequences sequences_in(const nb::dict& arrays, int num_seats) {
    const ArraysOf a{arrays, static_cast<size_t>(num_seats)};
    return {
        .num_seats = num_seats,
        .tokens = a.matrix<int32_t>("tokens", 1),
        .stride = a.stride<int32_t>("tokens"),
        .num_tokens = a.of<int32_t>("num_tokens"),
        .num_prompt_tokens = a.of<int32_t>("num_prompt_tokens"),
        .capacity = a.of<int32_t>("capacity"),
        .sampling = sampling_in(arrays, num_seats),
        .num_drafts = a.of<int32_t>("num_drafts"),
    };
}

BatchArrays batch_in(const nb::dict& arrays, const DecoderLimits& limits) {
    const ArraysOf rows{arrays, static_cast<size_t>(limits.max_num_batched_tokens)};
    const ArraysOf chunks{arrays, static_cast<size_t>(limits.max_num_seqs)};
    const ArraysOf samples{arrays, static_cast<size_t>(limits.max_num_seqs + limits.max_num_drafts)};
    return {
        .token_ids = rows.of<int32_t>("token_ids"),
        .positions = rows.of<int32_t>("positions"),
        .query_start = chunks.of<int32_t>("query_start", 1),
        .seats = chunks.of<int32_t>("seats"),
        .context_lens = chunks.of<int32_t>("context_lens"),
        .writes_kv = chunks.of<uint8_t>("writes_kv"),
        .sample_rows = samples.of<int32_t>("sample_rows"),
        .sample_seats = samples.of<int32_t>("sample_seats"),
        .sample_drafts = samples.of<int32_t>("sample_drafts"),
        .prompt_rows = rows.of<int32_t>("prompt_rows"),
        .prompt_targets = rows.of<int32_t>("prompt_targets"),
        .prompt_num_logprobs = rows.of<int32_t>("prompt_num_logprobs"),
    };
}

// A Chunk of hotseat/core/batch.py: (seat, request_id, start, end, samples, writes_kv).
Chunk chunk_in(nb::handle chunk) {
    const nb::tuple fields = nb::cast<nb::tuple>(chunk);
    if (fields.size() != 6) throw std::invalid_argument("a chunk has six fields");
    return {nb::cast<int>(fields[0]), nb::cast<int>(fields[2]), nb::cast<int>(fields[3]), nb::cast<bool>(fields[4]),
            nb::cast<bool>(fields[5])};
}

// A decoder and the Python objects whose memory it reads.
class BoundDecoder {
public:
    BoundDecoder(const Fields& shape, const Fields& limits, const std::string& mode, const std::string& isa,
                 int threads)
        : decoder_(shape_in(shape), limits_in(limits), mode_named(mode), table_named(isa), threads),
          limits_(limits_in(limits)) {}

    void set_embedding(const std::string& kind, const Bytes& data) {
        keep(nb::cast(data));
        decoder_.set_embedding(matrix_of(kind, data));
    }
    void bind(const Fields& seats, const Fields& batch, const Fields& results, const Fields& sampled,
              const Fields& prompt) {
        keep(seats), keep(batch), keep(results), keep(sampled), keep(prompt);
        const int num_samples = limits_.max_num_seqs + limits_.max_num_drafts;
        const ArraysOf samples{results, static_cast<size_t>(num_samples)};
        results_ = {.token_ids = samples.of<int32_t>("token_ids"),
                    .status = samples.of<uint8_t>("status"),
                    .sampled = logprobs_in(sampled, num_samples),
                    .prompt = logprobs_in(prompt, limits_.max_num_batched_tokens)};
        seats_ = seats_in(seats, limits_, decoder_.vocab_size(), decoder_.num_tables());
        sequences_ = sequences_in(seats, limits_.max_num_seqs);
        decoder_.bind({.seats = seats_, .logit_bias = {}, .allowed_ids = {}, .banned_ids = {}},
                      batch_in(batch, limits_), results_);
        flattener_.emplace(sequences_, batch_in(batch, limits_), limits_.max_num_batched_tokens, num_samples);
    }
    void set_sampler_lists(const Fields& bias, const Fields& allowed, const Fields& banned) {
        const auto list = [this](const nb::dict& arrays) {
            return ragged_in(arrays, limits_.max_num_seqs, decoder_.vocab_size());
        };
        decoder_.set_sampler_lists(list(bias), list(allowed), list(banned));
        lists_ = nb::make_tuple(bias, allowed, banned);
    }
    // Compute the chunks and append what they sample to their sequences. Returns
    // a token id for each row that samples, None where its status is not ok.
    nb::list step(const nb::list& chunks) {
        chunks_.clear();
        for (nb::handle chunk : chunks) chunks_.push_back(chunk_in(chunk));
        num_samples_ = num_tokens_ = 0;
        {
            nb::gil_scoped_release release;
            for (const Chunk& chunk : chunks_)
                check_chunk(chunk, sequences_, seats_, results_, limits_, decoder_.vocab_size(), decoder_.num_tables());
            const BatchCounts counts = flattener_.value().flatten(chunks_);
            decoder_.step(counts);
            num_samples_ = counts.num_samples;
            num_tokens_ = counts.num_tokens;
            flattener_->append_sampled(results_.token_ids, results_.status, num_samples_);
        }
        nb::list token_ids;
        for (int i = 0; i < num_samples_; ++i)
            if (results_.status[i] == static_cast<uint8_t>(SampleStatus::ok))
                token_ids.append(results_.token_ids[i]);
            else
                token_ids.append(nb::none());
        return token_ids;
    }
    nb::ndarray<const float, nb::numpy, nb::ndim<2>> logits(int num_rows) {
        check_range("num_rows", num_rows, 0, num_samples_);
        return {decoder_.logits(),
                {static_cast<size_t>(num_rows), static_cast<size_t>(decoder_.vocab_size())},
                nb::find(this)};
    }
    nb::ndarray<float, nb::numpy, nb::ndim<2>> hidden(int first, int end) {
        check_range("end", end, 0, num_tokens_);
        check_range("first", first, 0, end);
        const size_t rows = end - first, columns = decoder_.hidden_size();
        auto values = std::make_unique<float[]>(rows * columns);
        {
            nb::gil_scoped_release release;
            decoder_.write_hidden(first, end, values.get());
        }
        float* data = values.get();
        nb::capsule owner(values.release(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
        return {data, {rows, columns}, owner};
    }

    nb::typed<nb::dict, nb::str, double> step_seconds() {
        nb::typed<nb::dict, nb::str, double> seconds;
        for (int i = 0; i < kNumWorks; ++i) seconds[kWorkNames[i]] = decoder_.timer().seconds()[i];
        return seconds;
    }

    Decoder& decoder() { return decoder_; }

private:
    void keep(nb::object object) { kept_.append(object); }

    Decoder decoder_;
    const DecoderLimits limits_;
    Sequences sequences_{};
    SeatArrays seats_{};
    int num_samples_ = 0, num_tokens_ = 0;  // of the last step
    std::optional<Flattener> flattener_;    // once bound
    ResultArrays results_{};
    std::vector<Chunk> chunks_;  // of a step
    nb::list kept_;
    nb::object lists_;
};

// Setters of packed matrices: the source is read once, with the GIL released.
template <class Set>
void pack(Set&& set) {
    nb::gil_scoped_release release;
    set();
}

}  // namespace

Kind kind_named(const std::string& name) {
    static const std::map<std::string, Kind> kinds = {
        {"F32", Kind::F32},   {"F16", Kind::F16},       {"BF16", Kind::BF16},     {"Q8_0", Kind::Q8_0},
        {"Q4_0", Kind::Q4_0}, {"Q4_1", Kind::Q4_1},     {"Q5_0", Kind::Q5_0},     {"Q5_1", Kind::Q5_1},
        {"Q2_K", Kind::Q2_K}, {"Q3_K", Kind::Q3_K},     {"Q4_K", Kind::Q4_K},     {"Q5_K", Kind::Q5_K},
        {"Q6_K", Kind::Q6_K}, {"IQ4_NL", Kind::IQ4_NL}, {"IQ4_XS", Kind::IQ4_XS}, {"MXFP4", Kind::MXFP4},
    };
    const auto found = kinds.find(name);
    if (found == kinds.end()) throw std::invalid_argument("tensor type " + name + " has no kernel");
    return found->second;
}

WeightMode mode_named(const std::string& name) {
    if (name == "int8") return WeightMode::int8;
    if (name == "bf16") return WeightMode::bf16;
    if (name == "fp32") return WeightMode::fp32;
    if (name == "gguf") return WeightMode::grouped;
    throw std::invalid_argument("weight mode " + name + " is not one of int8, bf16, fp32, gguf");
}

const KernelTable& table_named(const std::string& name) {
    for (const KernelTable* table : this_machine().tables)
        if (name == table->name) return *table;
    throw std::invalid_argument("this machine does not have the instruction set " + name);
}

NB_MODULE(_native, m) {
    m.doc() = "One step of a decoder-only transformer, batched over requests.";
    m.def(
        "supported_isas", [] { return names_of(this_machine().tables); },
        "Instruction sets that this machine runs, the best last.");
    m.def(
        "rejected_isas", [] { return names_of(this_machine().rejected); },
        "Instruction sets that it has besides, whose bf16 products are not as defined.");
    nb::class_<BoundDecoder>(m, "Decoder")
        .def(nb::init<const Fields&, const Fields&, const std::string&, const std::string&, int>(), nb::arg("shape"),
             nb::arg("limits"), nb::arg("mode"), nb::arg("isa"), nb::arg("threads"))
        .def("set_embedding", &BoundDecoder::set_embedding, nb::arg("kind"), nb::arg("data"))
        .def(
            "set_position_embedding",
            [](BoundDecoder& self, const Floats& values) { self.decoder().set_position_embedding(vector_of(values)); },
            nb::arg("values"))
        .def(
            "set_vector",
            [](BoundDecoder& self, int layer, const std::string& slot, const Floats& values) {
                self.decoder().set_vector(layer, slot, vector_of(values));
            },
            nb::arg("layer"), nb::arg("slot"), nb::arg("values"),
            "Set a norm's weight or a bias by its slot; layer -1 is the model. Comes before the matrices.")
        .def(
            "set_output",
            [](BoundDecoder& self, const std::string& kind, const Bytes& data) {
                const StoredMatrix matrix = matrix_of(kind, data);
                pack([&] { self.decoder().set_output(matrix); });
            },
            nb::arg("kind"), nb::arg("data"))
        .def(
            "set_qkv",
            [](BoundDecoder& self, int layer, const std::string& q_kind, const Bytes& q, const std::string& k_kind,
               const Bytes& k, const std::string& v_kind, const Bytes& v) {
                const StoredMatrix a = matrix_of(q_kind, q), b = matrix_of(k_kind, k), c = matrix_of(v_kind, v);
                pack([&] { self.decoder().set_qkv(layer, a, b, c); });
            },
            nb::arg("layer"), nb::arg("q_kind"), nb::arg("q"), nb::arg("k_kind"), nb::arg("k"), nb::arg("v_kind"),
            nb::arg("v"))
        .def(
            "set_attention_output",
            [](BoundDecoder& self, int layer, const std::string& kind, const Bytes& data) {
                const StoredMatrix matrix = matrix_of(kind, data);
                pack([&] { self.decoder().set_attention_output(layer, matrix); });
            },
            nb::arg("layer"), nb::arg("kind"), nb::arg("data"))
        .def(
            "set_gate_up",
            [](BoundDecoder& self, int layer, const std::string& gate_kind, const Bytes& gate,
               const std::string& up_kind, const Bytes& up) {
                const StoredMatrix a = matrix_of(gate_kind, gate), b = matrix_of(up_kind, up);
                pack([&] { self.decoder().set_gate_up(layer, a, b); });
            },
            nb::arg("layer"), nb::arg("gate_kind"), nb::arg("gate"), nb::arg("up_kind"), nb::arg("up"))
        .def(
            "set_down",
            [](BoundDecoder& self, int layer, const std::string& kind, const Bytes& data) {
                const StoredMatrix matrix = matrix_of(kind, data);
                pack([&] { self.decoder().set_down(layer, matrix); });
            },
            nb::arg("layer"), nb::arg("kind"), nb::arg("data"))
        .def(
            "set_router",
            [](BoundDecoder& self, int layer, const Bytes& data) {
                const StoredMatrix matrix = matrix_of("F32", data);
                pack([&] { self.decoder().set_router(layer, matrix); });
            },
            nb::arg("layer"), nb::arg("data"),
            "Set float32 rows, one an expert, and one more that weighs a shared one.")
        .def(
            "set_expert",
            [](BoundDecoder& self, int layer, int expert, const std::string& gate_kind, const Bytes& gate,
               const std::string& up_kind, const Bytes& up, const std::string& down_kind, const Bytes& down) {
                const StoredMatrix a = matrix_of(gate_kind, gate), b = matrix_of(up_kind, up),
                                   c = matrix_of(down_kind, down);
                pack([&] { self.decoder().set_expert(layer, expert, a, b, c); });
            },
            nb::arg("layer"), nb::arg("expert"), nb::arg("gate_kind"), nb::arg("gate"), nb::arg("up_kind"),
            nb::arg("up"), nb::arg("down_kind"), nb::arg("down"))
        .def(
            "set_expert_bias",
            [](BoundDecoder& self, int layer, int expert, const std::string& slot, const Floats& values) {
                self.decoder().set_expert_bias(layer, expert, slot, vector_of(values));
            },
            nb::arg("layer"), nb::arg("expert"), nb::arg("slot"), nb::arg("values"), "Comes before the matrices.")
        .def(
            "set_shared_expert",
            [](BoundDecoder& self, int layer, const std::string& gate_kind, const Bytes& gate,
               const std::string& up_kind, const Bytes& up, const std::string& down_kind, const Bytes& down) {
                const StoredMatrix a = matrix_of(gate_kind, gate), b = matrix_of(up_kind, up),
                                   c = matrix_of(down_kind, down);
                pack([&] { self.decoder().set_shared_expert(layer, a, b, c); });
            },
            nb::arg("layer"), nb::arg("gate_kind"), nb::arg("gate"), nb::arg("up_kind"), nb::arg("up"),
            nb::arg("down_kind"), nb::arg("down"))
        .def("bind", &BoundDecoder::bind, nb::arg("seats"), nb::arg("batch"), nb::arg("results"), nb::arg("sampled"),
             nb::arg("prompt"))
        .def("set_sampler_lists", &BoundDecoder::set_sampler_lists, nb::arg("bias"), nb::arg("allowed"),
             nb::arg("banned"))
        .def("step", &BoundDecoder::step, nb::arg("chunks"),
             nb::sig("def step(self, chunks: list[hotseat.core.batch.Chunk]) -> list[int | None]"),
             "Compute a list of Chunk; return a token id for each row that samples, None where that failed.")
        .def("hidden", &BoundDecoder::hidden, nb::arg("first"), nb::arg("end"),
             "Rows [first, end) of the last step after the output norm.")
        .def("logits", &BoundDecoder::logits, nb::arg("num_rows"),
             "A view of the logits of the last step's sampling rows; the next "
             "step overwrites it.")
        .def_prop_ro("weight_bytes", [](BoundDecoder& self) { return self.decoder().weight_bytes(); })
        .def_prop_ro("num_experts_read", [](BoundDecoder& self) { return self.decoder().num_experts_read(); })
        .def_prop_ro("kv_bytes", [](BoundDecoder& self) { return self.decoder().kv_bytes(); })
        .def_prop_ro("num_threads", [](BoundDecoder& self) { return self.decoder().num_threads(); })
        .def_prop_ro("isa", [](BoundDecoder& self) { return std::string(self.decoder().isa()); })
        .def(
            "time_steps", [](BoundDecoder& self, bool enabled) { self.decoder().timer().enable(enabled); },
            nb::arg("enabled"), "Switch the clock on, counting from nothing, or off.")
        .def("step_seconds", &BoundDecoder::step_seconds, "Seconds of the steps so far by kind of work.");
    bind_bench(m);
}

}  // namespace hotseat
