"""Llama-family GGUF files: spec, weights, tokenizer source, and what is refused."""

import numpy as np
import pytest

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models import load
from hotseat.models.rope import rope_spec
from tiny_models import BOS_TOKEN_ID, CHAT_TEMPLATE, EOS_TOKEN_ID, TinyLlama, tiny_weights, write_tiny_gguf_model

gguf = pytest.importorskip("gguf")

SHAPE = {"num_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1}
HF_NAMES = {
    "token_embedding": "model.embed_tokens.weight",
    "q": "model.layers.{i}.self_attn.q_proj.weight",
    "k": "model.layers.{i}.self_attn.k_proj.weight",
    "v": "model.layers.{i}.self_attn.v_proj.weight",
    "down": "model.layers.{i}.mlp.down_proj.weight",
    "mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
}


@pytest.fixture
def edited(tmp_path):
    """Write a tiny file with some metadata and tensors replaced, added or (None) left out."""

    def edit(*, metadata=None, tensors=None):
        source = gguf.GGUFReader(write_tiny_gguf_model(tmp_path / "plain.gguf", **SHAPE))
        changed = metadata or {}
        writer = gguf.GGUFWriter(tmp_path / "edited.gguf", changed.get("general.architecture", "llama"))
        for name, field in source.fields.items():
            if not name.startswith("GGUF.") and name not in changed and name != "general.architecture":
                element = field.types[1] if len(field.types) > 1 else None
                writer.add_key_value(name, field.contents(), field.types[0], element)
        for name, value in changed.items():
            if value is not None and name != "general.architecture":
                add_metadata(writer, name, value)
        replaced = tensors or {}
        stored = {tensor.name: tensor.data for tensor in source.tensors}
        for name, values in (stored | replaced).items():
            if values is not None:
                writer.add_tensor(name, np.asarray(values))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "edited.gguf"

    return edit


def add_metadata(writer, name, value):
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(name, value)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_weights_are_those_that_were_written_with_q_and_k_in_rotate_half_order(kind, tmp_path):
    model = load(str(write_tiny_gguf_model(tmp_path / "tiny.gguf", kind=kind)))
    written = tiny_weights(TinyLlama())
    for slot in ("token_embedding", "layers.0.q", "layers.1.k", "layers.1.v", "layers.0.down", "layers.1.mlp_norm"):
        _, layer, part = slot.split(".") if "." in slot else ("", "", slot)
        expected = written[HF_NAMES[part].format(i=layer)]
        if kind not in ("F32", "F16") and expected.ndim == 2:
            quantization = gguf.GGMLQuantizationType[kind]
            expected = gguf.quants.dequantize(gguf.quants.quantize(expected, quantization), quantization)
        elif expected.ndim == 2:
            expected = expected.astype({"F32": np.float32, "F16": np.float16}[kind]).astype(np.float32)
        np.testing.assert_array_equal(model.weights[slot].dequantize(), expected)
        assert model.weights[slot].data.flags.c_contiguous


def test_the_spec_says_what_the_metadata_says(tmp_path):
    path = write_tiny_gguf_model(tmp_path / "a name.gguf", num_layers=3, num_heads=4, num_kv_heads=1, norm_eps=1e-6)
    model = load(str(path))
    spec = model.spec
    assert (model.name, model.path, spec.architecture) == ("a name", path, "llama")
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (3, 4, 1, 16)
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (384, 64, 128)
    assert spec.norm_eps == pytest.approx(1e-6)
    assert spec.max_position_embeddings == 512
    assert spec.rope == rope_spec({}, head_dim=16, theta=10000.0)
    assert spec.metadata == {"name": "tiny"}


def test_a_head_may_be_larger_than_its_share_of_the_hidden_size(tmp_path):
    model = load(str(write_tiny_gguf_model(tmp_path / "tiny.gguf", head_dim=32)))
    assert model.spec.head_dim == 32
    assert model.weights["layers.0.attention_output"].shape == (64, 128)


def test_embeddings_are_tied_exactly_when_there_is_no_output_tensor(tmp_path):
    tied = load(str(write_tiny_gguf_model(tmp_path / "tied.gguf")))
    untied = load(str(write_tiny_gguf_model(tmp_path / "untied.gguf", tie_word_embeddings=False)))
    assert tied.spec.tie_word_embeddings
    assert "output" not in tied.weights
    assert not untied.spec.tie_word_embeddings
    expected = tiny_weights(TinyLlama(tie_word_embeddings=False))["lm_head.weight"]
    np.testing.assert_array_equal(untied.weights["output"].dequantize(), expected)


def test_the_tokenizer_comes_along_as_plain_values(tmp_path):
    model = load(str(write_tiny_gguf_model(tmp_path / "tiny.gguf")))
    metadata = model.tokenizer_source.metadata
    assert model.tokenizer_source.kind == "gguf"
    assert len(metadata["tokenizer.ggml.tokens"]) == 384
    assert metadata["tokenizer.ggml.tokens"][EOS_TOKEN_ID] == "<|im_end|>"
    assert metadata["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]
    assert metadata["tokenizer.ggml.pre"] == "gpt-2"
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert model.chat_template == CHAT_TEMPLATE
    assert model.generation_config.eos_token_ids == (EOS_TOKEN_ID,)
    assert model.generation_config.bos_token_id == BOS_TOKEN_ID


def test_every_token_that_ends_a_turn_is_an_eos_id(edited):
    model = load(str(edited(metadata={"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 5})))
    assert model.generation_config.eos_token_ids == (0, 5, EOS_TOKEN_ID)  # the last is a control token <|im_end|>


def test_ids_beyond_the_vocabulary_are_left_out(edited):
    metadata = {"tokenizer.ggml.eos_token_id": 384, "tokenizer.ggml.bos_token_id": 4_000_000_000}
    config = load(str(edited(metadata=metadata))).generation_config
    assert (config.eos_token_ids, config.bos_token_id) == ((EOS_TOKEN_ID,), None)


LINEAR = {"rope_type": "linear", "factor": 2.0}
HF_YARN = {"rope_type": "yarn", "factor": 4.0}
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}


@pytest.mark.parametrize(
    ("metadata", "parameters"),
    [
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
            {"rope_type": "linear", "factor": 2.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}, {}),
        (
            YARN | {"llama.rope.scaling.original_context_length": 128},
            HF_YARN | {"original_max_position_embeddings": 128},
        ),
        (
            YARN | {"llama.rope.scaling.yarn_beta_fast": 16.0, "llama.rope.scaling.yarn_beta_slow": 2.0},
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 16,
                "beta_slow": 2,
            },
        ),
    ],
)
def test_rope_scaling_metadata_is_understood(metadata, parameters, edited):
    rope = load(str(edited(metadata=metadata))).spec.rope
    assert rope == rope_spec(parameters, head_dim=16, theta=10000.0)


def test_yarns_attention_factor_is_multiplied_by_the_files_own(edited):
    rope = load(str(edited(metadata=YARN | {"llama.rope.scaling.attn_factor": 0.5}))).spec.rope
    assert rope.attention_factor == pytest.approx(0.5 * (1 + 0.1 * np.log(4)))


def test_the_tensor_of_rope_factors_divides_the_frequencies(edited):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    rope = load(str(edited(tensors={"rope_freqs.weight": factors}))).spec.rope
    assert rope == rope_spec({}, head_dim=16, theta=10000.0, factors=factors)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.architecture": "lfm2"}, "architecture 'lfm2' is not supported; supported in GGUF: llama"),
        ({"llama.attention.sliding_window": 128}, "sliding-window"),
        ({"llama.logit_scale": 0.5}, "logit_scale"),
        ({"llama.attention.causal": False}, "causal"),
        ({"llama.attention.value_length": 8}, "attention.value_length 8"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'"),
        ({"llama.attention.head_count_kv": [1, 2]}, "differs from layer to layer"),
        (YARN | {"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor"),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(metadata, reason, edited):
    with pytest.raises(UnsupportedModelError) as caught:
        load(str(edited(metadata=metadata)))
    assert reason in str(caught.value)


def test_a_window_as_long_as_the_context_is_no_window(edited):
    assert load(str(edited(metadata={"llama.attention.sliding_window": 512}))).spec.max_position_embeddings == 512


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"llama.block_count": None}, "llama.block_count must be a positive whole number, not None"),
        ({"llama.block_count": 4_000_000_000}, "4000000000 layers"),
        ({"llama.embedding_length": "64"}, "embedding_length"),
        ({"llama.expert_count": 8}, "expert_used_count must be a positive whole number"),
        ({"llama.expert_count": 4_000_000_000, "llama.expert_used_count": 2}, "at most 4096 exist"),
        ({"llama.expert_count": 2, "llama.expert_used_count": 3}, "3 of 2 experts cannot be chosen"),
        ({"llama.expert_count": 2, "llama.expert_used_count": 1}, "tensors are missing: blk.0.ffn_gate_inp.weight"),
        ({"llama.attention.head_count_kv": 0}, "head_count_kv"),
        ({"llama.attention.head_count": 3, "llama.attention.head_count_kv": 2}, "evenly"),
        ({"llama.attention.key_length": 4_000_000_000}, "4000000000"),
        ({"llama.rope.scaling.type": 7}, "must be a string"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "between 0 and 1, not -1.0"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "llama.attention.layer_norm_rms_epsilon is missing"),
        ({"llama.rope.freq_base": float("nan")}, "rope_theta"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": ["a"] * 385}, "385 tokens, but only 384 embeddings"),
    ],
)
def test_senseless_metadata_is_refused_with_its_value(metadata, reason, edited):
    with pytest.raises(ModelError) as caught:
        load(str(edited(metadata=metadata)))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"blk.0.ffn_up.weight": None}, "1 tensor is missing: blk.0.ffn_up.weight"),
        ({"token_embd.weight": None}, "token_embd.weight is missing"),
        ({"blk.0.ffn_up.weight": np.zeros((64, 16), np.float32)}, "blk.0.ffn_up.weight has the shape [64, 16]"),
        ({"blk.0.ffn_up.weight": np.zeros((64, 16), np.float32)}, "asks for [64, 32]"),
        ({"blk.0.mystery.weight": np.zeros(4, np.float32)}, "unknown to this architecture: blk.0.mystery.weight"),
        ({"rope_freqs.weight": np.ones(5, np.float32)}, "rope_freqs.weight must be F32 [8], not F32 [5]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tensors, reason, edited):
    with pytest.raises(ModelError) as caught:
        load(str(edited(tensors=tensors)))
    assert reason in str(caught.value)


def test_a_bias_that_no_slot_takes_is_refused(edited):
    with pytest.raises(ModelError, match=r"1 tensor is unknown to this architecture: output\.bias"):
        load(str(edited(tensors={"output.bias": np.zeros(384, np.float32)})))


def test_an_unsupported_tensor_type_is_refused_with_those_supported(edited):
    integers = np.zeros((64, 32), np.int8)
    with pytest.raises(UnsupportedModelError, match=r"I8 is not supported \(first met in blk.0.ffn_up.weight\).*Q6_K"):
        load(str(edited(tensors={"blk.0.ffn_up.weight": integers})))
