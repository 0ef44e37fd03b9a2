"""Which of a repository's GGUF files is meant."""

import pytest

from hotseat.errors import ModelNotFoundError
from hotseat.models.gguf_choice import choose_gguf

FILES = [
    "README.md",
    "imatrix_tiny.gguf",
    "mmproj-F16.gguf",
    "tiny-it-mmproj-f16.gguf",
    "tiny-Q4_K_S.gguf",
    "tiny-Q4_K_M.gguf",
    "tiny-UD-Q4_K_M.gguf",
    "tiny-UD-Q2_K_XL.gguf",
    "tiny.q8_0.gguf",
    "BF16/tiny-BF16-00001-of-00002.gguf",
    "BF16/tiny-BF16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("Q4_K_M", "tiny-Q4_K_M.gguf"),
        ("q4_k_s", "tiny-Q4_K_S.gguf"),
        ("UD-Q4_K_M", "tiny-UD-Q4_K_M.gguf"),
        ("Q2_K_XL", "tiny-UD-Q2_K_XL.gguf"),
        ("Q8_0", "tiny.q8_0.gguf"),
        ("bf16", "BF16/tiny-BF16-00001-of-00002.gguf"),
        ("tiny.q8_0.gguf", "tiny.q8_0.gguf"),
        (None, "tiny-Q4_K_M.gguf"),
    ],
)
def test_a_kind_names_its_file(wanted, chosen):
    assert choose_gguf(FILES, wanted, where="acme/tiny") == chosen


@pytest.mark.parametrize(
    ("files", "wanted", "reason"),
    [
        (FILES, "Q3_K", "acme/tiny has no GGUF file for 'Q3_K'; it has: BF16/tiny-BF16-00001-of-00002.gguf, "),
        (FILES, "Q4_K", "no GGUF file for 'Q4_K'"),
        (["mmproj.gguf", "model.safetensors"], "Q4_0", "acme/tiny has no GGUF file"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", "several GGUF files for 'Q4_0', of which one must be named: a-Q4_0.g"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], None, "several GGUF files for Q4_0"),
        (["a.gguf", "b.gguf"], None, "several GGUF files, of which one must be named: a.gguf, b.gguf"),
    ],
)
def test_what_no_or_more_than_one_file_fits_is_refused_with_those_that_are_there(files, wanted, reason):
    with pytest.raises(ModelNotFoundError) as caught:
        choose_gguf(files, wanted, where="acme/tiny")
    assert reason in str(caught.value)


def test_a_single_file_needs_no_name():
    assert choose_gguf(["whatever.gguf", "mmproj-whatever.gguf"], None, where="acme/tiny") == "whatever.gguf"
