"""Every architecture against transformers: tiny random models, from Hugging Face directories and from GGUF files."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gguf_twins import write_gguf_twin
from hotseat.models import LoadedModel, load
from hotseat.runner import ReferenceRunner
from runner.hand_batches import HandScheduler, small_config
from twins import TWINS, Twin, as_transformers_4, nest, prompts, write_twin

for needed in ("torch", "transformers", "gguf"):
    pytest.importorskip(needed)

pytestmark = pytest.mark.oracle


class Written:
    """The twins that were written so far; each is made once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hf = cache(self._hf)
        self.gguf = cache(self._gguf)

    def _hf(self, name: str) -> tuple[Path, list[np.ndarray]]:
        directory = self.directory / name
        return directory, write_twin(TWINS[name], directory)

    def _gguf(self, name: str) -> Path:
        return write_gguf_twin(TWINS[name], self.hf(name)[0], self.directory / f"{name}.gguf")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("twins"))


def reference_logits(model: LoadedModel, twin: Twin) -> list[np.ndarray]:
    """Return the logits of each prompt, all of them computed in one batch."""
    config = small_config(num_kv_blocks=64, max_num_batched_tokens=256, max_model_len=128)
    runner = ReferenceRunner(model.spec, model.weights, config)
    scheduler = HandScheduler(runner, config)
    ids = prompts(twin)
    for i, prompt in enumerate(ids):
        scheduler.seat(f"r{i}", prompt)
    logits = runner.logits(scheduler.batch({f"r{i}": len(prompt) for i, prompt in enumerate(ids)}))
    return np.split(logits, np.cumsum([len(prompt) for prompt in ids])[:-1])


def check(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-3 * np.abs(theirs).max()
        assert np.mean(ours.argmax(-1) == theirs.argmax(-1)) > 0.95  # but for ties


@pytest.mark.parametrize("name", list(TWINS))
def test_logits_equal_those_of_transformers(name: str, written: Written) -> None:
    directory, expected = written.hf(name)
    check(reference_logits(load(str(directory)), TWINS[name]), expected)


@pytest.mark.parametrize("name", [name for name in TWINS if TWINS[name].gguf])
def test_a_gguf_file_gives_the_same(name: str, written: Written) -> None:
    twin = TWINS[name]
    path, expected = written.gguf(name), written.hf(name)[1]
    check(reference_logits(load(str(path)), twin), expected)


@pytest.mark.parametrize("name", ["llama-biased", "gemma3", "phi4-mini", "olmo3", "glm4", "exaone4-window"])
def test_a_config_that_transformers_4_wrote_means_the_same(name: str, tmp_path: Path) -> None:
    write_twin(TWINS[name], tmp_path / name)
    new = load(str(tmp_path / name))
    as_transformers_4(tmp_path / name)
    assert load(str(tmp_path / name)).spec == new.spec


@pytest.mark.parametrize(
    ("name", "architecture", "model_type"),
    [
        ("gemma3", "Gemma3ForConditionalGeneration", "gemma3"),
        ("mistral", "Mistral3ForConditionalGeneration", "mistral3"),
    ],
)
def test_a_text_model_inside_a_multimodal_checkpoint_is_found(
    name: str, architecture: str, model_type: str, tmp_path: Path
) -> None:
    write_twin(TWINS[name], tmp_path)
    alone = load(str(tmp_path))
    bytes_alone = {slot: weight.dequantize() for slot, weight in alone.weights.items()}
    nest(tmp_path, architecture=architecture, model_type=model_type)
    nested = load(str(tmp_path))
    assert nested.weights.keys() == bytes_alone.keys()
    for slot, weight in nested.weights.items():
        assert np.array_equal(weight.dequantize(), bytes_alone[slot])
    for field in ("layers", "ropes", "norm_placement", "embedding_scale", "tie_word_embeddings"):
        assert getattr(nested.spec, field) == getattr(alone.spec, field)
