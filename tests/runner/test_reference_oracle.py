"""The reference runner against transformers' LlamaForCausalLM, in float32."""

from typing import Any

import numpy as np
import pytest

from hotseat.core.request import SamplingParams
from hotseat.models.spec import RopeSpec
from hotseat.runner import ReferenceRunner
from runner.hand_batches import HandScheduler, memory_weights, small_config, tiny_spec
from tiny_models import TinyLlama, tiny_config, tiny_weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.oracle

LINEAR = {"rope_type": "linear", "factor": 2.5}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

MODELS = {
    "grouped": TinyLlama(),
    "one head a group": TinyLlama(num_heads=4, num_kv_heads=4),
    "one kv head": TinyLlama(num_heads=6, num_kv_heads=1, hidden_size=48),
    "odd groups": TinyLlama(num_heads=9, num_kv_heads=3, hidden_size=72, head_dim=6),
    "odd sizes": TinyLlama(hidden_size=54, intermediate_size=101, num_heads=3, num_kv_heads=1, head_dim=10),
    "untied": TinyLlama(tie_word_embeddings=False, vocab_size=389),
    "one layer": TinyLlama(num_layers=1, norm_eps=1e-2, rope_theta=500.0),
    "linear": TinyLlama(rope_scaling=LINEAR),
    "llama3": TinyLlama(rope_scaling=LLAMA3),
    "yarn": TinyLlama(rope_scaling=YARN),
}


def oracle(model: TinyLlama) -> Any:
    config = transformers.LlamaConfig(**tiny_config(model))
    network = transformers.LlamaForCausalLM(config).eval()
    state = {name: torch.from_numpy(array) for name, array in tiny_weights(model).items()}
    if model.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    network.load_state_dict(state)
    return network


def oracle_rope(network: Any) -> RopeSpec:
    rotary = network.model.rotary_emb
    return RopeSpec(
        inverse_frequencies=tuple(rotary.inv_freq.tolist()), attention_factor=float(rotary.attention_scaling)
    )


def oracle_logits(network: Any, token_ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits: np.ndarray = network(torch.tensor([token_ids])).logits[0].numpy()
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str) -> None:
    model = MODELS[name]
    network = oracle(model)
    prompt = np.random.default_rng(3).integers(0, model.vocab_size, 150).tolist()
    expected = oracle_logits(network, prompt)
    config = small_config(num_kv_blocks=128, max_num_batched_tokens=150)
    runner = ReferenceRunner(tiny_spec(model, oracle_rope(network)), memory_weights(model), config)
    scheduler = HandScheduler(runner, config)
    scheduler.seat("whole", prompt)
    whole = runner.logits(scheduler.batch({"whole": 150}))
    assert np.abs(whole - expected).max() <= 1e-4 * np.abs(expected).max()
    scheduler.seat("cut", prompt)
    cut = np.concatenate([runner.logits(scheduler.batch({"cut": count})) for count in (1, 64, 7, 77, 1)])
    assert np.array_equal(cut, whole)


def test_greedy_tokens_equal_those_of_transformers_alone_and_in_a_crowd() -> None:
    model = MODELS["odd groups"]
    network = oracle(model)
    config = small_config(num_kv_blocks=128)
    runner = ReferenceRunner(tiny_spec(model, oracle_rope(network)), memory_weights(model), config)
    scheduler = HandScheduler(runner, config)
    rng = np.random.default_rng(4)
    prompts = {f"r{i}": rng.integers(0, model.vocab_size, 3 + 4 * i).tolist() for i in range(6)}
    for request_id, prompt in prompts.items():
        scheduler.seat(request_id, prompt)
    scheduler.step({request_id: len(prompt) for request_id, prompt in prompts.items()})
    scheduler.decode(*prompts, steps=15)
    for request_id, prompt in prompts.items():
        with torch.inference_mode():
            expected = network.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=16,
                do_sample=False,
                eos_token_id=-1,
                pad_token_id=0,
            )
        assert scheduler.sequences[request_id] == expected[0].tolist()


def test_logprobs_and_ranks_equal_those_of_transformers() -> None:
    model = MODELS["grouped"]
    network = oracle(model)
    prompt = np.random.default_rng(5).integers(0, model.vocab_size, 21).tolist()
    logits = oracle_logits(network, prompt)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    config = small_config()
    runner = ReferenceRunner(tiny_spec(model, oracle_rope(network)), memory_weights(model), config)
    scheduler = HandScheduler(runner, config)
    # Temperature, penalties and a bias change what is drawn, not the log-probabilities.
    params = SamplingParams(
        temperature=0.3, logprobs=4, prompt_logprobs=3, repetition_penalty=1.5, logit_bias=((5, 30.0),)
    )
    scheduler.seat("r", prompt, params=params)
    outputs = [scheduler.step({"r": count}) for count in (1, 8, 12)]
    entries = [entry for output in outputs for entry in output.prompt_logprobs.get("r", [])]
    assert [entry.token_id for entry in entries] == prompt[1:]
    for position, entry in enumerate(entries):
        check_entry(entry, expected[position], num_top=3)
    (sampled,) = outputs[-1].sampled
    assert sampled.token_ids == [5]
    (entry,) = sampled.logprobs or ()
    check_entry(entry, expected[-1], num_top=4)


def check_entry(entry: Any, expected: np.ndarray, *, num_top: int) -> None:
    order = np.argsort(-expected, kind="stable")
    assert entry.logprob == pytest.approx(expected[entry.token_id], abs=1e-4)
    assert entry.rank == 1 + np.flatnonzero(order == entry.token_id)[0]
    assert [id_ for id_, _ in entry.top] == order[:num_top].tolist()
    assert [logprob for _, logprob in entry.top] == pytest.approx(expected[order[:num_top]], abs=1e-4)
