"""Inverse frequencies against transformers, and what is refused."""

import numpy as np
import pytest

from hotseat.errors import ModelError, UnsupportedModelError
from hotseat.models.rope import rope_spec

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, **LLAMA3},
    "llama3.2": {"rope_type": "llama3", "factor": 32.0, **LLAMA3},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn, own betas and mscales": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
        "beta_fast": 30.0,
        "beta_slow": 2.0,
    },
    "yarn, own attention factor, not truncated": {
        "rope_type": "yarn",
        "factor": 2.5,
        "original_max_position_embeddings": 2048,
        "attention_factor": 1.3,
        "truncate": False,
    },
}


@pytest.mark.oracle
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("theta", [10000.0, 100000.0, 130000.0, 500000.0])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_are_those_of_transformers(scaling, theta, head_dim):
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = SCALINGS[scaling]
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=16384,
        rope_parameters={**parameters, "rope_theta": theta},
    )
    theirs = LlamaRotaryEmbedding(config)
    ours = rope_spec(parameters, head_dim=head_dim, theta=theta)
    expected = theirs.inv_freq.numpy()
    frequencies = np.array(ours.inverse_frequencies)
    assert (frequencies == frequencies.astype(np.float32)).all()
    # Equal; where PyTorch's power is not rounded to nearest, the neighbouring float32 (two with YaRN's blending).
    np.testing.assert_allclose(frequencies, expected, rtol=1e-7 if head_dim in (16, 64, 128) else 2.4e-7)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_plain_rope_is_the_formula():
    expected = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(rope_spec({}, head_dim=64, theta=10000.0).inverse_frequencies, expected, rtol=2e-7)


def test_factors_divide_the_frequencies_one_by_one():
    plain = np.array(rope_spec({}, head_dim=8, theta=10000.0).inverse_frequencies)
    factors = np.array([1, 2, 4, 8], np.float32)
    scaled = rope_spec({}, head_dim=8, theta=10000.0, factors=factors).inverse_frequencies
    np.testing.assert_allclose(scaled, plain / factors, rtol=1e-7)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope", "su", "mrope"])
def test_an_unknown_scaling_is_refused_by_name_with_those_supported(rope_type):
    with pytest.raises(UnsupportedModelError, match=f"'{rope_type}'.*default, linear, llama3, yarn"):
        rope_spec({"rope_type": rope_type}, head_dim=64, theta=10000.0)


@pytest.mark.parametrize("factor", [None, 0, -2.0, "4", True, float("nan"), float("inf"), 1e308])
def test_a_scaling_without_a_sensible_factor_is_refused(factor):
    with pytest.raises(ModelError, match="'factor'"):
        rope_spec({"rope_type": "linear", "factor": factor}, head_dim=64, theta=10000.0)


@pytest.mark.parametrize(("head_dim", "theta"), [(63, 1e4), (0, 1e4), (10**12, 1e4), (64, 1.0), (64, float("nan"))])
def test_senseless_sizes_are_refused(head_dim, theta):
    with pytest.raises(ModelError):
        rope_spec({}, head_dim=head_dim, theta=theta)


def test_frequencies_that_are_not_finite_are_refused():
    with pytest.raises(ModelError, match="not finite"):
        rope_spec({}, head_dim=4, theta=10000.0, factors=np.array([1, 0], np.float32))
