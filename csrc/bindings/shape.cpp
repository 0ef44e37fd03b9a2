// What a decoder is, out of the dictionaries that Python describes it with.
#include "bindings/shape.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bindings/arrays.h"

namespace nb = nanobind;

namespace hotseat {

namespace {

// The place of a name in `names`, as a value of an enum in the same order.
template <class Enum>
Enum named(const nb::dict& d, const char* key, std::initializer_list<const char*> names) {
    const auto name = nb::cast<std::string>(d[key]);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw std::invalid_argument(std::string(key) + " cannot be " + name);
    return static_cast<Enum>(found - names.begin());
}
std::vector<Rope> ropes_in(const nb::dict& d) {
    std::vector<Rope> ropes;
    for (nb::handle item : nb::cast<nb::list>(d["ropes"])) {
        const nb::tuple pair = nb::cast<nb::tuple>(item);
        ropes.push_back({nb::cast<std::vector<float>>(pair[0]), nb::cast<float>(pair[1])});
        const int64_t half = nb::cast<int>(d["head_dim"]) / 2;
        check_range("the number of a rope's frequencies", static_cast<int64_t>(ropes.back().inverse_frequencies.size()),
                    half, half);
    }
    return ropes;
}
ExpertsShape experts_in(const nb::dict& shape) {
    if (shape["experts"].is_none()) return {};
    const auto d = nb::cast<nb::dict>(shape["experts"]);
    return {
        .count = nb::cast<int>(d["count"]),
        .per_token = nb::cast<int>(d["per_token"]),
        .intermediate_size = nb::cast<int>(d["intermediate_size"]),
        .is_sigmoid = nb::cast<std::string>(d["scoring"]) == "sigmoid",
        .renormalizes = nb::cast<bool>(d["renormalize"]),
        .scale = nb::cast<float>(d["scale"]),
        .num_groups = nb::cast<int>(d["num_groups"]),
        .groups_per_token = nb::cast<int>(d["groups_per_token"]),
        .shared_intermediate_size = nb::cast<int>(d["shared_intermediate_size"]),
    };
}
// One index a layer, each of [low, high].
std::vector<int> indices_in(const nb::dict& d, const char* name, int64_t low, int64_t high) {
    auto indices = nb::cast<std::vector<int>>(d[name]);
    const auto num_layers = nb::cast<int64_t>(d["num_layers"]);
    check_range((std::string("the number of ") + name).c_str(), static_cast<int64_t>(indices.size()), num_layers,
                num_layers);
    for (int index : indices) check_range(name, index, low, high);
    return indices;
}
std::vector<int> tables_in(const nb::dict& d) {
    auto tables = nb::cast<std::vector<int>>(d["layer_tables"]);
    const auto num_layers = nb::cast<int64_t>(d["num_layers"]);
    check_range("the number of layer_tables", static_cast<int64_t>(tables.size()), num_layers, num_layers);
    for (int table : tables) check_range("the block table of a layer", table, 0, num_layers - 1);
    return tables;
}

}  // namespace

DecoderShape shape_in(const nb::dict& d) {
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
        .activation = named<Activation>(d, "activation", {"silu", "gelu_tanh", "gelu_erf", "relu2", "swiglu_oai"}),
        .attention_scale = nb::cast<float>(d["attention_scale"]),
        .attention_softcap = nb::cast<float>(d["attention_softcap"]),
        .logit_softcap = nb::cast<float>(d["logit_softcap"]),
        .logit_scale = nb::cast<float>(d["logit_scale"]),
        .embedding_scale = nb::cast<float>(d["embedding_scale"]),
        .residual_scale = nb::cast<float>(d["residual_scale"]),
        .ropes = ropes_in(d),
        .layer_ropes =
            indices_in(d, "layer_ropes", -1, static_cast<int64_t>(nb::cast<nb::list>(d["ropes"]).size()) - 1),
        .experts = experts_in(d),
        .layer_windows = indices_in(d, "layer_windows", 0, INT32_MAX),
        .layer_tables = tables_in(d),
    };
}
DecoderLimits limits_in(const nb::dict& d) {
    return {
        .max_num_seqs = nb::cast<int>(d["max_num_seqs"]),
        .max_num_batched_tokens = nb::cast<int>(d["max_num_batched_tokens"]),
        .max_model_len = nb::cast<int>(d["max_model_len"]),
        .num_kv_blocks = nb::cast<int>(d["num_kv_blocks"]),
        .block_size = nb::cast<int>(d["block_size"]),
        .kv_is_fp32 = nb::cast<bool>(d["kv_is_fp32"]),
        .max_num_drafts = nb::cast<int>(d["max_num_drafts"]),
    };
}

}  // namespace hotseat
