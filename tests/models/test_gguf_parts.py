"""GGUF models in several files: found from any part, refused when the parts do not make one model."""

import shutil

import numpy as np
import pytest

from hotseat.errors import ModelError, ModelNotFoundError
from hotseat.models import load
from hotseat.models.gguf_parts import read_gguf_model
from tiny_models import write_tiny_gguf_model

gguf = pytest.importorskip("gguf")


@pytest.fixture
def first(tmp_path):
    return write_tiny_gguf_model(tmp_path / "tiny.gguf", kind="Q8_0", tensors_per_part=8)


def part(first, number):
    return first.with_name(first.name.replace("00001-of", f"{number:05}-of"))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_split_model_is_loaded_whole_whichever_part_is_named(number, first, tmp_path):
    whole = load(str(write_tiny_gguf_model(tmp_path / "whole" / "tiny.gguf", kind="Q8_0")))
    split = load(str(part(first, number)))
    assert len(list(tmp_path.glob("tiny-*.gguf"))) == 3
    assert (split.name, split.path) == ("tiny", first)
    assert split.spec == whole.spec
    assert split.weights.keys() == whole.weights.keys()
    for slot, weight in whole.weights.items():
        np.testing.assert_array_equal(split.weights[slot].data, weight.data)
    assert split.tokenizer_source.metadata == whole.tokenizer_source.metadata


def test_a_directory_with_one_split_model_is_that_model(first):
    assert load(str(first.parent)).path == first


def test_a_directory_with_several_models_lists_each_once(first):
    shutil.copy(first, first.with_name("other.gguf"))
    with pytest.raises(ModelNotFoundError, match=rf"one of its GGUF files instead: other\.gguf, {first.name}$"):
        load(str(first.parent))


@pytest.mark.parametrize("number", [1, 3])
def test_a_missing_part_is_named(number, first):
    part(first, 2).unlink()
    with pytest.raises(ModelNotFoundError, match=r"has 3 parts, of which 1 are missing: tiny-00002-of-00003\.gguf"):
        load(str(part(first, number)))


def test_a_renamed_part_is_told_what_its_name_must_be(first):
    renamed = part(first, 2).rename(first.with_name("second.gguf"))
    with pytest.raises(ModelError, match=r"one of 3 parts \(split\.count\).*-00001-of-00003\.gguf"):
        load(str(renamed))


def test_swapped_parts_are_refused_with_both_numbers(first):
    shutil.copy(part(first, 2), part(first, 3))
    with pytest.raises(
        ModelError, match=r"part 3 of 3, but its metadata say split\.no 1 \(from 0\) and split\.count 3"
    ):
        load(str(first))


def test_a_part_of_another_model_is_refused(first, tmp_path):
    other = write_tiny_gguf_model(tmp_path / "other" / "tiny.gguf", num_layers=1, tensors_per_part=4)
    shutil.copy(part(other, 3), part(first, 3))
    with pytest.raises(ModelError, match=r"tensor .* is in parts|split\.tensors\.count is"):
        read_gguf_model(first)


def test_a_file_that_only_looks_like_a_part_is_a_model_of_its_own(tmp_path):
    path = write_tiny_gguf_model(tmp_path / "tiny-00002-of-00007.gguf")
    assert load(str(path)).spec.num_layers == 2
