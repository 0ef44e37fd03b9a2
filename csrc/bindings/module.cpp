// The only place that knows Python: check arrays, keep them alive, release the
// GIL, call the decoder.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/names.h"
#include "decoder/decoder.h"
#include "decoder/flatten.h"
#include "decoder/machine.h"
#include "kernels/table.h"

namespace nb = nanobind;

namespace hotseat {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::string> names_of(const std::vector<const KernelTable*>& tables) {
    std::vector<std::string> names;
    for (const KernelTable* table : tables) names.emplace_back(table->name);
    return names;
}

StoredMatrix matrix_of(const std::string& kind, const Bytes& data) {
    return {kind_named(kind), data.data(), data.shape(1), static_cast<int>(data.shape(0))};
}

std::vector<float> vector_of(const Floats& data) { return {data.data(), data.data() + data.shape(0)}; }

// An array by name from a dictionary, checked for its type; it must stay alive
// as long as it is bound.
template <class T>
T* array_in(const nb::dict& arrays, const char* name) {
    const auto array = nb::cast<nb::ndarray<T, nb::c_contig, nb::device::cpu>>(arrays[name], false);
    return array.data();
}

size_t row_stride(const nb::dict& arrays, const char* name) {
    return nb::cast<nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>>(arrays[name], false).shape(1);
}

LogprobArrays logprobs_in(const nb::dict& arrays) {
    return {array_in<float>(arrays, "logprob"), array_in<int32_t>(arrays, "rank"), array_in<int32_t>(arrays, "top_ids"),
            array_in<float>(arrays, "top_logprobs"), row_stride(arrays, "top_ids")};
}

RaggedArrays ragged_in(const nb::dict& arrays) {
    return {array_in<int32_t>(arrays, "offsets"), array_in<int32_t>(arrays, "ids"), array_in<float>(arrays, "values")};
}

SeatArrays seats_in(const nb::dict& a) {
    return {
        .tokens = array_in<int32_t>(a, "tokens"),
        .tokens_stride = row_stride(a, "tokens"),
        .num_tokens = array_in<int32_t>(a, "num_tokens"),
        .num_prompt_tokens = array_in<int32_t>(a, "num_prompt_tokens"),
        .block_tables = array_in<int32_t>(a, "block_tables"),
        .blocks_stride = row_stride(a, "block_tables"),
        .temperature = array_in<float>(a, "temperature"),
        .top_p = array_in<float>(a, "top_p"),
        .top_k = array_in<int32_t>(a, "top_k"),
        .min_p = array_in<float>(a, "min_p"),
        .seed = array_in<uint64_t>(a, "seed"),
        .presence_penalty = array_in<float>(a, "presence_penalty"),
        .frequency_penalty = array_in<float>(a, "frequency_penalty"),
        .repetition_penalty = array_in<float>(a, "repetition_penalty"),
        .min_tokens = array_in<int32_t>(a, "min_tokens"),
        .num_logprobs = array_in<int32_t>(a, "num_logprobs"),
        .has_penalties = array_in<uint8_t>(a, "has_penalties"),
        .token_masks = array_in<uint32_t>(a, "token_masks"),
        .mask_words = row_stride(a, "token_masks"),
        .has_mask = array_in<uint8_t>(a, "has_mask"),
    };
}

Sequences sequences_in(const nb::dict& a) {
    return {
        .num_seats = static_cast<int>(nb::cast<nb::ndarray<nb::ndim<2>>>(a["tokens"], false).shape(0)),
        .tokens = array_in<int32_t>(a, "tokens"),
        .stride = row_stride(a, "tokens"),
        .num_tokens = array_in<int32_t>(a, "num_tokens"),
        .num_prompt_tokens = array_in<int32_t>(a, "num_prompt_tokens"),
        .capacity = array_in<int32_t>(a, "capacity"),
        .num_prompt_logprobs = array_in<int32_t>(a, "num_prompt_logprobs"),
    };
}

BatchArrays batch_in(const nb::dict& a) {
    return {
        .token_ids = array_in<int32_t>(a, "token_ids"),
        .positions = array_in<int32_t>(a, "positions"),
        .query_start = array_in<int32_t>(a, "query_start"),
        .seats = array_in<int32_t>(a, "seats"),
        .context_lens = array_in<int32_t>(a, "context_lens"),
        .writes_kv = array_in<uint8_t>(a, "writes_kv"),
        .sample_rows = array_in<int32_t>(a, "sample_rows"),
        .sample_seats = array_in<int32_t>(a, "sample_seats"),
        .prompt_rows = array_in<int32_t>(a, "prompt_rows"),
        .prompt_targets = array_in<int32_t>(a, "prompt_targets"),
        .prompt_num_logprobs = array_in<int32_t>(a, "prompt_num_logprobs"),
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
    BoundDecoder(const nb::dict& shape, const nb::dict& limits, const std::string& mode, const std::string& isa,
                 int threads)
        : decoder_(shape_in(shape), limits_in(limits), mode_named(mode), table_named(isa), threads),
          max_num_tokens_(limits_in(limits).max_num_batched_tokens) {}

    void set_embedding(const std::string& kind, const Bytes& data) {
        keep(nb::cast(data));
        decoder_.set_embedding(matrix_of(kind, data));
    }
    void bind(const nb::dict& seats, const nb::dict& batch, const nb::dict& results, const nb::dict& sampled,
              const nb::dict& prompt) {
        keep(seats), keep(batch), keep(results), keep(sampled), keep(prompt);
        results_ = {.token_ids = array_in<int32_t>(results, "token_ids"),
                    .status = array_in<uint8_t>(results, "status"),
                    .sampled = logprobs_in(sampled),
                    .prompt = logprobs_in(prompt)};
        decoder_.bind({.seats = seats_in(seats), .logit_bias = {}, .allowed_ids = {}, .banned_ids = {}},
                      batch_in(batch), results_);
        flattener_.emplace(sequences_in(seats), batch_in(batch), max_num_tokens_);
    }
    void set_sampler_lists(const nb::dict& bias, const nb::dict& allowed, const nb::dict& banned) {
        decoder_.set_sampler_lists(ragged_in(bias), ragged_in(allowed), ragged_in(banned));
        lists_ = nb::make_tuple(bias, allowed, banned);
    }
    // Compute the chunks and append what they sample to their sequences. Returns
    // a token id for each chunk that samples, None where its status is not ok.
    nb::list step(const nb::list& chunks) {
        chunks_.clear();
        for (nb::handle chunk : chunks) chunks_.push_back(chunk_in(chunk));
        int num_samples;
        {
            nb::gil_scoped_release release;
            const BatchCounts counts = flattener_.value().flatten(chunks_);
            decoder_.step(counts);
            num_samples = counts.num_samples;
            flattener_->append_sampled(results_.token_ids, num_samples);
        }
        nb::list token_ids;
        for (int i = 0; i < num_samples; ++i)
            if (results_.status[i] == static_cast<uint8_t>(SampleStatus::ok))
                token_ids.append(results_.token_ids[i]);
            else
                token_ids.append(nb::none());
        return token_ids;
    }
    nb::ndarray<const float, nb::numpy, nb::ndim<2>> logits(int num_rows) {
        return {decoder_.logits(),
                {static_cast<size_t>(num_rows), static_cast<size_t>(decoder_.vocab_size())},
                nb::find(this)};
    }

    nb::dict step_seconds() {
        nb::dict seconds;
        for (int i = 0; i < kNumWorks; ++i) seconds[kWorkNames[i]] = decoder_.timer().seconds()[i];
        return seconds;
    }

    Decoder& decoder() { return decoder_; }

private:
    // The place of a name in `names`, as a value of an enum in the same order.
    template <class Enum>
    static Enum named(const nb::dict& d, const char* key, std::initializer_list<const char*> names) {
        const auto name = nb::cast<std::string>(d[key]);
        const auto found = std::find(names.begin(), names.end(), name);
        if (found == names.end()) throw std::invalid_argument(std::string(key) + " cannot be " + name);
        return static_cast<Enum>(found - names.begin());
    }
    static std::vector<Rope> ropes_in(const nb::dict& d) {
        std::vector<Rope> ropes;
        for (nb::handle item : nb::cast<nb::list>(d["ropes"])) {
            const nb::tuple pair = nb::cast<nb::tuple>(item);
            ropes.push_back({nb::cast<std::vector<float>>(pair[0]), nb::cast<float>(pair[1])});
        }
        return ropes;
    }
    static DecoderShape shape_in(const nb::dict& d) {
        return {
            .vocab_size = nb::cast<int>(d["vocab_size"]),
            .hidden_size = nb::cast<int>(d["hidden_size"]),
            .intermediate_size = nb::cast<int>(d["intermediate_size"]),
            .num_layers = nb::cast<int>(d["num_layers"]),
            .num_heads = nb::cast<int>(d["num_heads"]),
            .num_kv_heads = nb::cast<int>(d["num_kv_heads"]),
            .head_dim = nb::cast<int>(d["head_dim"]),
            .norm_eps = nb::cast<float>(d["norm_eps"]),
            .norm_is_layer = nb::cast<bool>(d["norm_is_layer"]),
            .norm_placement = named<NormPlacement>(d, "norm_placement", {"pre", "post", "sandwich", "parallel"}),
            .has_mlp_norm = nb::cast<bool>(d["has_mlp_norm"]),
            .qk_norm = named<QkNorm>(d, "qk_norm", {"none", "head", "heads", "row"}),
            .qk_norm_after_rope = nb::cast<bool>(d["qk_norm_after_rope"]),
            .gated = nb::cast<bool>(d["gated"]),
            .activation = named<Activation>(d, "activation", {"silu", "gelu_tanh", "gelu_erf", "relu2"}),
            .attention_scale = nb::cast<float>(d["attention_scale"]),
            .attention_softcap = nb::cast<float>(d["attention_softcap"]),
            .logit_softcap = nb::cast<float>(d["logit_softcap"]),
            .logit_scale = nb::cast<float>(d["logit_scale"]),
            .embedding_scale = nb::cast<float>(d["embedding_scale"]),
            .residual_scale = nb::cast<float>(d["residual_scale"]),
            .ropes = ropes_in(d),
            .layer_ropes = nb::cast<std::vector<int>>(d["layer_ropes"]),
            .layer_windows = nb::cast<std::vector<int>>(d["layer_windows"]),
        };
    }
    static DecoderLimits limits_in(const nb::dict& d) {
        return {
            .max_num_seqs = nb::cast<int>(d["max_num_seqs"]),
            .max_num_batched_tokens = nb::cast<int>(d["max_num_batched_tokens"]),
            .max_model_len = nb::cast<int>(d["max_model_len"]),
            .num_kv_blocks = nb::cast<int>(d["num_kv_blocks"]),
            .block_size = nb::cast<int>(d["block_size"]),
            .kv_is_fp32 = nb::cast<bool>(d["kv_is_fp32"]),
        };
    }
    void keep(nb::object object) { kept_.append(object); }

    Decoder decoder_;
    int max_num_tokens_;
    std::optional<Flattener> flattener_;  // once bound
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
        {"F32", Kind::F32},   {"F16", Kind::F16},   {"BF16", Kind::BF16}, {"Q8_0", Kind::Q8_0},
        {"Q4_0", Kind::Q4_0}, {"Q4_1", Kind::Q4_1}, {"Q5_0", Kind::Q5_0}, {"Q5_1", Kind::Q5_1},
        {"Q4_K", Kind::Q4_K}, {"Q5_K", Kind::Q5_K}, {"Q6_K", Kind::Q6_K},
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
        .def(nb::init<const nb::dict&, const nb::dict&, const std::string&, const std::string&, int>(),
             nb::arg("shape"), nb::arg("limits"), nb::arg("mode"), nb::arg("isa"), nb::arg("threads"))
        .def("set_embedding", &BoundDecoder::set_embedding, nb::arg("kind"), nb::arg("data"))
        .def("set_position_embedding",
             [](BoundDecoder& self, const Floats& values) { self.decoder().set_position_embedding(vector_of(values)); })
        .def(
            "set_vector",
            [](BoundDecoder& self, int layer, const std::string& slot, const Floats& values) {
                self.decoder().set_vector(layer, slot, vector_of(values));
            },
            nb::arg("layer"), nb::arg("slot"), nb::arg("values"),
            "Set a norm's weight or a bias by its slot; layer -1 is the model. Comes before the matrices.")
        .def("set_output",
             [](BoundDecoder& self, const std::string& kind, const Bytes& data) {
                 const StoredMatrix matrix = matrix_of(kind, data);
                 pack([&] { self.decoder().set_output(matrix); });
             })
        .def("set_qkv",
             [](BoundDecoder& self, int layer, const std::string& q_kind, const Bytes& q, const std::string& k_kind,
                const Bytes& k, const std::string& v_kind, const Bytes& v) {
                 const StoredMatrix a = matrix_of(q_kind, q), b = matrix_of(k_kind, k), c = matrix_of(v_kind, v);
                 pack([&] { self.decoder().set_qkv(layer, a, b, c); });
             })
        .def("set_attention_output",
             [](BoundDecoder& self, int layer, const std::string& kind, const Bytes& data) {
                 const StoredMatrix matrix = matrix_of(kind, data);
                 pack([&] { self.decoder().set_attention_output(layer, matrix); });
             })
        .def("set_gate_up",
             [](BoundDecoder& self, int layer, const std::string& gate_kind, const Bytes& gate,
                const std::string& up_kind, const Bytes& up) {
                 const StoredMatrix a = matrix_of(gate_kind, gate), b = matrix_of(up_kind, up);
                 pack([&] { self.decoder().set_gate_up(layer, a, b); });
             })
        .def("set_down",
             [](BoundDecoder& self, int layer, const std::string& kind, const Bytes& data) {
                 const StoredMatrix matrix = matrix_of(kind, data);
                 pack([&] { self.decoder().set_down(layer, matrix); });
             })
        .def("bind", &BoundDecoder::bind, nb::arg("seats"), nb::arg("batch"), nb::arg("results"), nb::arg("sampled"),
             nb::arg("prompt"))
        .def("set_sampler_lists", &BoundDecoder::set_sampler_lists, nb::arg("bias"), nb::arg("allowed"),
             nb::arg("banned"))
        .def("step", &BoundDecoder::step, nb::arg("chunks"),
             "Compute a list of Chunk; return a token id for each that samples, None where that failed.")
        .def("logits", &BoundDecoder::logits, nb::arg("num_rows"),
             "A view of the logits of the last step's sampling rows; the next "
             "step overwrites it.")
        .def_prop_ro("weight_bytes", [](BoundDecoder& self) { return self.decoder().weight_bytes(); })
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
