"""What a model's name may be, and the default model itself."""

import time

import numpy as np
import pytest

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models import DEFAULT_MODEL, layer_slots, load, slot_shapes
from tiny_models import write_tiny_gguf_model, write_tiny_hf_model


@pytest.mark.parametrize("model", ["./gone", "../gone", "/gone/model", "~/gone", "gone.gguf", "a/b/gone", "gone model"])
def test_a_path_that_is_not_there_is_named(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"there is no file or directory .*gone") as error:
        load(model)
    assert ("looked for" in str(error.value)) == (model != "/gone/model"), "a path is not said twice"


def test_a_directory_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match=f"{tmp_path} is not a Hugging Face model: there is no config.json"):
        load(str(tmp_path))


def test_the_home_directory_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_tiny_hf_model(tmp_path / "tiny")
    assert load("~/tiny").path == tmp_path / "tiny"


def test_a_gguf_file_may_have_any_name_and_another_file_is_refused(tmp_path):
    path = write_tiny_gguf_model(tmp_path / "tiny.gguf")
    assert load(str(path.rename(tmp_path / "blob"))).spec.num_layers == 2
    (tmp_path / "model.safetensors").write_bytes(bytes(64))
    with pytest.raises(ModelError, match=r"model\.safetensors is not a GGUF file"):
        load(str(tmp_path / "model.safetensors"))


def test_the_same_model_is_the_same_in_both_formats(tmp_path):
    from_gguf = load(str(write_tiny_gguf_model(tmp_path / "tiny.gguf", tie_word_embeddings=False)))
    from_hf = load(str(write_tiny_hf_model(tmp_path / "tiny", tie_word_embeddings=False)))
    assert from_gguf.weights.keys() == from_hf.weights.keys() == slot_shapes(from_hf.spec).keys()
    for slot, weight in from_gguf.weights.items():
        np.testing.assert_array_equal(weight.dequantize(), from_hf.weights[slot].dequantize())
    assert from_gguf.spec.rope == from_hf.spec.rope
    assert from_gguf.chat_template == from_hf.chat_template
    assert from_gguf.generation_config == from_hf.generation_config


@pytest.mark.model
def test_the_default_model_is_smollm2(default_model_path):
    model = load(str(default_model_path))
    spec = model.spec
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (30, 576, 1536, 49152)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (9, 3, 64)
    assert (spec.max_position_embeddings, spec.tie_word_embeddings) == (8192, True)
    assert spec.metadata["license"] == DEFAULT_MODEL.licence.lower()
    assert len(model.weights) == 30 * len(layer_slots(spec, 0)) + 2
    assert {weight.kind for weight in model.weights.values()} == {"Q4_1", "Q8_0", "F32"}
    assert model.generation_config.eos_token_ids == (2,)
    assert len(model.tokenizer_source.metadata["tokenizer.ggml.merges"]) == 48900
    assert "<|im_start|>" in (model.chat_template or "")


@pytest.mark.model
def test_the_default_model_is_greedy_where_a_request_names_no_temperature(default_model_path):
    cache_dir = default_model_path.parent.parent
    assert load(None, cache_dir=cache_dir, offline=True).generation_config.temperature == 0
    assert load(str(default_model_path)).generation_config.temperature is None


@pytest.mark.model
def test_the_default_model_loads_at_once(default_model_path):
    def seconds():
        start = time.perf_counter()
        load(str(default_model_path))
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.5  # about 0.05 on an idle machine
