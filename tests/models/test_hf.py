"""Hugging Face directories: spec, weights, side files, and what is refused."""

import json

import numpy as np
import pytest

from hotseat.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from hotseat.models import load
from hotseat.models.rope import rope_spec
from tiny_models import CHAT_TEMPLATE, TinyLlama, encode, tiny_weights, write_safetensors, write_tiny_hf_model

SHAPE = {"num_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1}


@pytest.fixture
def directory(tmp_path):
    return write_tiny_hf_model(tmp_path / "tiny", **SHAPE)


def change(path, **values):
    """Set keys of a JSON file; ``None`` removes one."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def rewrite_weights(directory, **changed):
    """Write the tiny model's tensors again with some replaced, added or (None) left out."""
    weights = tiny_weights(TinyLlama(**SHAPE)) | changed
    tensors = {n: ("F32", v.shape, encode(v, "F32")) for n, v in weights.items() if v is not None}
    write_safetensors(directory / "model.safetensors", tensors)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_weights_are_views_of_what_was_written(kind, shards, tmp_path):
    model = load(str(write_tiny_hf_model(tmp_path / "tiny", kind=kind, shards=shards)))
    written = tiny_weights(TinyLlama())
    for slot, name in (
        ("token_embedding", "model.embed_tokens.weight"),
        ("layers.0.q", "model.layers.0.self_attn.q_proj.weight"),
        ("layers.1.down", "model.layers.1.mlp.down_proj.weight"),
        ("output_norm", "model.norm.weight"),
    ):
        tensor = model.weights[slot]
        assert (tensor.kind, tensor.shape) == (kind, written[name].shape)
        assert tensor.data.tobytes() == encode(written[name], kind)
        assert not tensor.data.flags.owndata
        if kind == "F32":
            np.testing.assert_array_equal(tensor.dequantize(), written[name])


def test_the_spec_says_what_the_config_says(tmp_path):
    model = load(str(write_tiny_hf_model(tmp_path / "tiny", num_layers=3, head_dim=32, num_kv_heads=4)))
    spec = model.spec
    assert (model.name, model.path, spec.architecture) == ("tiny", tmp_path / "tiny", "LlamaForCausalLM")
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (3, 4, 4, 32)
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (384, 64, 128)
    assert (spec.norm_eps, spec.max_position_embeddings) == (1e-5, 512)
    assert spec.rope == rope_spec({}, head_dim=32, theta=10000.0)


def test_what_the_config_leaves_out_is_what_transformers_assumes(directory):
    gone = dict.fromkeys(("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "rope_theta"))
    change(directory / "config.json", **gone)
    rewrite_weights(
        directory,
        **{f"model.layers.0.self_attn.{part}_proj.weight": np.zeros((32, 32), np.float32) for part in "kv"},
    )
    spec = load(str(directory)).spec
    assert (spec.num_kv_heads, spec.head_dim, spec.norm_eps, spec.max_position_embeddings) == (2, 16, 1e-6, 2048)


def test_mistral_without_a_window_is_a_llama(directory):
    change(directory / "config.json", architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None)
    assert load(str(directory)).spec.architecture == "MistralForCausalLM"
    change(directory / "config.json", sliding_window=512)  # as long as the context
    assert load(str(directory)).spec.architecture == "MistralForCausalLM"


YARN = {"factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("config", "parameters", "theta"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}, 1e4),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}, 1e4),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {}, 5e5),
        ({"rope_parameters": {"rope_type": "yarn", **YARN}, "rope_theta": 2e4}, {"rope_type": "yarn", **YARN}, 2e4),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, {"rope_type": "yarn", **YARN}, 1e4),
        (
            {"rope_scaling": {"type": "yarn"}, "original_max_position_embeddings": 128},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            1e4,
        ),
    ],
)
def test_rope_is_read_from_old_and_new_configs(config, parameters, theta, directory):
    change(directory / "config.json", **config)
    assert load(str(directory)).spec.rope == rope_spec(parameters, head_dim=16, theta=theta)


def test_yarn_reaches_as_far_as_it_scales(directory):
    change(directory / "config.json", rope_scaling={"type": "yarn", **YARN})
    assert load(str(directory)).spec.max_position_embeddings == 2048


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["Lfm2ForCausalLM"]}, "'Lfm2ForCausalLM' is not supported; supported are: LlamaFor"),
        ({"architectures": [], "model_type": "lfm2"}, "architecture 'lfm2'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping (30.0)"),
        ({"residual_multiplier": 0.5}, "residual_multiplier (0.5)"),
        ({"sliding_window": 128}, "sliding-window attention (a window of 128)"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window attention"),
        ({"rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}}, "mrope_section"),
        ({"num_local_experts": 8}, "mixtures of experts"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_an_unsupported_feature_is_refused_by_name_before_weights_are_looked_at(config, reason, directory):
    change(directory / "config.json", **config)
    (directory / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError) as caught:
        load(str(directory))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"hidden_size": None}, "hidden_size must be a positive whole number, not None"),
        ({"num_hidden_layers": 10**12}, "1000000000000 layers is not to be believed; 4096 are the most"),
        ({"num_hidden_layers": 4000}, "4000 layers cannot consist of only 11 tensors"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"head_dim": 10**12}, "head size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        (
            {"vocab_size": 400},
            "embed_tokens.weight has the shape [384, 32]; the model's configuration asks for [400, 32]",
        ),
    ],
)
def test_a_senseless_config_is_refused_with_its_value(config, reason, directory):
    change(directory / "config.json", **config)
    with pytest.raises(ModelError) as caught:
        load(str(directory))
    assert reason in str(caught.value)


def test_missing_and_unknown_tensors_are_named(directory):
    rewrite_weights(directory, **{"model.layers.0.mlp.up_proj.weight": None, "model.norm.weight": None})
    with pytest.raises(ModelError, match=r"2 tensors are missing: model\.layers\.0\.mlp\.up_proj\.weight, model\.norm"):
        load(str(directory))
    rewrite_weights(directory, **{"model.layers.0.mystery": np.zeros(3, np.float32)})
    with pytest.raises(ModelError, match=r"unknown to this architecture: model\.layers\.0\.mystery"):
        load(str(directory))


def test_leftovers_of_old_checkpoints_are_ignored(directory):
    rewrite_weights(directory, **{"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32)})
    assert "output_norm" in load(str(directory)).weights


def test_an_unsupported_dtype_is_refused_with_those_supported(directory):
    write_safetensors(directory / "model.safetensors", {f"t{i}": ("F8_E4M3", (4,), b"1234") for i in range(20)})
    with pytest.raises(UnsupportedModelError, match=r"F8_E4M3 is not supported .* BF16"):
        load(str(directory))


def test_an_output_equal_to_tied_embeddings_is_dropped_and_another_one_is_used(directory):
    embedding = tiny_weights(TinyLlama(**SHAPE))["model.embed_tokens.weight"]
    rewrite_weights(directory, **{"lm_head.weight": embedding})
    model = load(str(directory))
    assert model.spec.tie_word_embeddings
    assert "output" not in model.weights
    rewrite_weights(directory, **{"lm_head.weight": embedding + 1})  # transformers ≥ 5 uses it too
    model = load(str(directory))
    assert not model.spec.tie_word_embeddings
    np.testing.assert_array_equal(model.weights["output"].dequantize(), embedding + 1)


def test_a_missing_output_is_an_error_unless_the_config_ties_it(directory):
    change(directory / "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"1 tensor is missing: lm_head\.weight"):
        load(str(directory))


def test_generation_defaults_come_from_generation_config_and_else_from_the_config(directory):
    change(directory / "generation_config.json", eos_token_id=[2, 7], temperature=0.6, top_p=0.9, top_k=20)
    config = load(str(directory)).generation_config
    assert (config.eos_token_ids, config.bos_token_id) == ((2, 7), 1)
    assert (config.temperature, config.top_p, config.top_k, config.min_p) == (0.6, 0.9, 20, None)
    change(directory / "generation_config.json", eos_token_id=[384, -1, 5, 5], bos_token_id=10**6)
    config = load(str(directory)).generation_config
    assert (config.eos_token_ids, config.bos_token_id) == ((5,), None)  # no other id could ever be sampled
    change(directory / "generation_config.json", eos_token_id=0)
    assert load(str(directory)).generation_config.eos_token_ids == (0,)
    (directory / "generation_config.json").unlink()
    assert load(str(directory)).generation_config.eos_token_ids == (2,)


def test_the_chat_template_is_found_wherever_it_is(directory):
    assert load(str(directory)).chat_template == CHAT_TEMPLATE
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    change(directory / "tokenizer_config.json", chat_template=named)
    assert load(str(directory)).chat_template == "plain"
    (directory / "chat_template.jinja").write_text("from a file")
    assert load(str(directory)).chat_template == "from a file"
    (directory / "chat_template.jinja").unlink()
    change(directory / "tokenizer_config.json", chat_template=None)
    assert load(str(directory)).chat_template is None


def test_the_tokenizer_comes_along_with_its_config(directory):
    source = load(str(directory)).tokenizer_source
    assert (source.kind, source.path) == ("tokenizer.json", directory / "tokenizer.json")
    assert source.config["eos_token"] == "<|im_end|>"
    (directory / "tokenizer_config.json").unlink()
    assert load(str(directory)).tokenizer_source.config == {}


def test_missing_files_are_named(directory, tmp_path):
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load(str(directory))
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        load(str(directory))
    (tmp_path / "other").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "other" / name).touch()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json; name one of its GGUF files instead: a\.gguf, b\.g"):
        load(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        ({"a": "../other.safetensors"}, "not a file of the same directory"),
        ({"a": "gone.safetensors"}, "names gone.safetensors, which is missing"),
        ({"a": "model-00001-of-00002.safetensors"}, "tensor a is not in model-00001-of-00002.safetensors"),
        ({"a": 3}, "no weight_map"),
        (None, "no weight_map"),
    ],
)
def test_a_wrong_index_is_refused(weight_map, reason, tmp_path):
    directory = write_tiny_hf_model(tmp_path / "tiny", shards=2)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError) as caught:
        load(str(directory))
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[1]", "\udcff"])
def test_a_broken_json_file_is_named(name, content, directory):
    (directory / name).write_text(content, errors="surrogateescape")
    with pytest.raises(ModelError, match=name):
        load(str(directory))


WEIRD = ([], {}, "x", -1, 0, 1.5, float("inf"), float("nan"), True, [None], [[1]], {"a": {}}, 10**30, ["x", 3])
OPTIONAL_KEYS = (
    *("rope_parameters", "sliding_window", "layer_types", "quantization_config"),
    *("partial_rotary_factor", "original_max_position_embeddings"),
)
WEIRD_ROPES = (
    {"rope_type": 3},
    {"type": ["yarn"]},
    {"rope_type": "yarn", "factor": "x"},
    {"rope_type": "yarn", "factor": 1e308},
    {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": "x"},
    {"rope_type": "yarn", "factor": 2.0, "mscale": "x", "mscale_all_dim": 2},
    {"rope_type": "yarn", "factor": 2.0, "attention_factor": [1]},
    {"rope_type": "llama3", "factor": 2},
    {"rope_theta": "x"},
)


def test_weird_values_never_end_in_another_exception(directory):
    files = {
        "config.json": (*json.loads((directory / "config.json").read_text()), *OPTIONAL_KEYS),
        "generation_config.json": ("eos_token_id", "bos_token_id", "temperature"),
        "tokenizer_config.json": ("chat_template",),
    }
    refused = 0
    for name, keys in files.items():
        plain = (directory / name).read_text()
        for key in keys:
            for value in WEIRD + WEIRD_ROPES:
                change(directory / name, **{key: value})
                try:
                    load(str(directory))
                except ModelError:
                    refused += 1
                (directory / name).write_text(plain)
    assert refused > 100


@pytest.mark.oracle
def test_a_random_model_has_the_weights_that_transformers_loads(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = write_tiny_hf_model(tmp_path / "tiny", kind="BF16", shards=2, tie_word_embeddings=False)
    state = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).state_dict()
    weights = load(str(directory)).weights
    np.testing.assert_array_equal(weights["output"].dequantize(), state["lm_head.weight"].numpy())
    name = "model.layers.1.self_attn.k_proj.weight"
    np.testing.assert_array_equal(weights["layers.1.k"].dequantize(), state[name].numpy())
