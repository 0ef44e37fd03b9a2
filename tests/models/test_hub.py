"""Hub ids against a hub on 127.0.0.1, each in a process of its own since huggingface_hub reads its settings once."""

import json
import os
import subprocess
import sys

import pytest

from models.fake_hub import FakeHub, serve_hub
from tiny_models import write_tiny_gguf_model, write_tiny_hf_model

LOAD = """
import json, sys
from hotseat.errors import ModelError
from hotseat.models import load
try:
    model = load(sys.argv[1], **json.loads(sys.argv[2]))
    print(json.dumps([model.name, model.spec.num_layers, sorted(model.weights)[0], str(model.path)]))
except ModelError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def load_in_a_process(tmp_path):
    def run(model, *, environ, **options):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        own = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        own["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        result = subprocess.run(
            [sys.executable, "-c", LOAD, model, json.dumps(options)],
            env=kept | own | environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture
def hub(tmp_path):
    tiny = write_tiny_hf_model(tmp_path / "tiny", shards=2)
    (tiny / "original").mkdir()
    for name in ("original/consolidated.safetensors", "pytorch_model.bin", "README.md"):
        (tiny / name).write_text("not needed")
    other = write_tiny_hf_model(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"architectures": ["OtherForCausalLM"]}))
    ggufs = tmp_path / "ggufs"
    write_tiny_gguf_model(ggufs / "tiny-Q4_0.gguf", kind="Q4_0")
    write_tiny_gguf_model(ggufs / "tiny-Q8_0.gguf", kind="Q8_0")
    write_tiny_gguf_model(ggufs / "parts" / "tiny-F16.gguf", kind="F16", tensors_per_part=12)
    (ggufs / "config.json").write_text("{}")
    models = {"acme/tiny": tiny, "acme/other": other, "acme/gated": tiny, "acme/ggufs": ggufs}
    with serve_hub(FakeHub(models, gated={"acme/gated"})) as served:
        yield served


def test_a_hub_model_is_fetched_without_what_is_not_needed_and_works_offline_after_that(hub, load_in_a_process):
    name, num_layers, slot, path = load_in_a_process("acme/tiny", environ={"HF_ENDPOINT": hub.endpoint})
    assert (name, num_layers, slot) == ("acme/tiny", 2, "layers.0.attention_norm")
    assert "/hf/hub/models--acme--tiny/" in path
    assert hub.fetched() == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    hub.requests.clear()
    endpoint = {"HF_ENDPOINT": hub.endpoint}
    assert load_in_a_process("acme/tiny", environ=endpoint, offline=True)[0] == "acme/tiny"
    assert load_in_a_process("acme/tiny", environ=endpoint | {"HF_HUB_OFFLINE": "1"})[0] == "acme/tiny"
    assert hub.requests == []


def test_an_unsupported_architecture_is_refused_before_weights_are_fetched(hub, load_in_a_process):
    error, message = load_in_a_process("acme/other", environ={"HF_ENDPOINT": hub.endpoint})
    assert error == "UnsupportedModelError"
    assert message.startswith("acme/other: architecture 'OtherForCausalLM' is not supported; supported are: Llama")
    assert hub.fetched() == {"config.json"}


def test_a_gated_model_asks_for_a_token_and_takes_one(hub, load_in_a_process):
    endpoint = {"HF_ENDPOINT": hub.endpoint}
    error, message = load_in_a_process("acme/gated", environ=endpoint)
    assert (error, "HF_TOKEN" in message) == ("ModelNotFoundError", True)
    assert load_in_a_process("acme/gated", environ=endpoint | {"HF_TOKEN": "secret"})[0] == "acme/gated"
    assert load_in_a_process("acme/gated", environ=endpoint, token="secret")[0] == "acme/gated"


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        ("acme/gone", {}, "the hub has no such model"),
        ("acme/tiny", {"revision": "v9"}, "no revision 'v9'"),
        ("acme/tiny", {"offline": True}, "nothing is fetched (offline)"),
        ("bad--/name", {}, "not a hub id"),
    ],
)
def test_what_cannot_be_had_is_explained_in_plain_words(model, options, reason, hub, load_in_a_process):
    error, message = load_in_a_process(model, environ={"HF_ENDPOINT": hub.endpoint}, **options)
    assert error == "ModelNotFoundError"
    assert reason in message


def test_a_hub_out_of_reach_is_explained_in_plain_words(load_in_a_process):
    error, message = load_in_a_process("acme/tiny", environ={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert (error, "out of reach" in message) == ("ModelNotFoundError", True)
    assert "offline" not in message


@pytest.mark.parametrize(
    ("model", "files"),
    [
        ("acme/ggufs:q8_0", {"tiny-Q8_0.gguf"}),
        ("acme/ggufs:F16", {"tiny-F16-00001-of-00002.gguf", "tiny-F16-00002-of-00002.gguf"}),
        ("acme/ggufs", {"tiny-Q4_0.gguf"}),
    ],
)
def test_only_the_gguf_file_that_is_meant_is_fetched_and_works_offline_after_that(model, files, hub, load_in_a_process):
    pytest.importorskip("gguf")
    endpoint = {"HF_ENDPOINT": hub.endpoint}
    name, num_layers, _, path = load_in_a_process(model, environ=endpoint)
    assert (name, num_layers) == (model, 2)
    assert path.rsplit("/", 1)[-1] == min(files)
    assert hub.fetched() == files
    hub.requests.clear()
    assert load_in_a_process(model, environ=endpoint, offline=True)[3] == path
    assert load_in_a_process(model, environ=endpoint | {"HF_HUB_OFFLINE": "1"})[3] == path
    assert hub.requests == []


def test_a_kind_that_the_repository_lacks_is_refused_with_those_that_it_has(hub, load_in_a_process):
    error, message = load_in_a_process("acme/ggufs:Q6_K", environ={"HF_ENDPOINT": hub.endpoint})
    assert error == "ModelNotFoundError"
    assert "has no GGUF file for 'Q6_K'; it has: parts/tiny-F16-00001-of-00002.gguf, tiny-Q4_0.gguf" in message
    error, message = load_in_a_process("acme/tiny:Q6_K", environ={"HF_ENDPOINT": hub.endpoint})
    assert (error, message) == ("ModelNotFoundError", "acme/tiny has no GGUF file")
    assert hub.fetched() == set()


def test_a_model_in_the_cache_is_used_when_the_hub_is_out_of_reach(hub, load_in_a_process):
    path = load_in_a_process("acme/ggufs:Q4_0", environ={"HF_ENDPOINT": hub.endpoint})[3]
    assert load_in_a_process("acme/ggufs:Q4_0", environ={"HF_ENDPOINT": "http://127.0.0.1:9"})[3] == path
