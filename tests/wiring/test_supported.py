"""``hotseat models``: the list is that of what loads."""

from pathlib import Path

from hotseat.models import FAMILIES
from hotseat.wiring import list_models


def test_every_architecture_is_listed_with_its_names_in_both_formats(tmp_path: Path) -> None:
    words = [line.split() for line in list_models(tmp_path).splitlines()]
    for family in FAMILIES:
        for name, model_type in family.hf.items():
            assert [name, model_type, family.gguf or "-"] in words
    assert ["LlamaForCausalLM", "llama", "llama"] in words


def test_tensor_types_rope_scalings_and_the_default_model_are_named(tmp_path: Path) -> None:
    text = list_models(tmp_path)
    for word in ("SmolLM2-135M-Instruct", "Q4_K", "BF16", "yarn", "llama3"):
        assert word in text
