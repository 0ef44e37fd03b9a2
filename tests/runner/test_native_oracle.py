"""The native runner with the default model, in fp32, against transformers' LlamaForCausalLM."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotseat.core.request import SamplingParams
from hotseat.models import LoadedModel, load
from hotseat.text import Tokenizer
from runner.hand_batches import HandScheduler

pytest.importorskip("hotseat.runner._native", reason="the extension is not built")

from runner.native_cases import native_scheduler

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.model, pytest.mark.oracle]

NUM_TOKENS = 64
TIE = 1e-4  # logits of transformers that are closer than this may come in either order
MAX_TIES = 3

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nclass Matrix:\n    def __init__(self, rows, columns):\n",
    "<|im_start|>user\nWhat is a hot seat?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nName rivers.<|im_end|>\n<|im_start|>assistant\n",
    "Water boils at 100 degrees Celsius because",
    "1, 1, 2, 3, 5, 8, 13,",
    "Der Zug nach Köln fährt um",
    "Il était une fois une princesse qui",
    "你好，世界。今天",
    "Привет! Меня зовут",
    "A",
    "\n",
    "the the the the the the the the the the the the the the the the the the the the",
    "| name | age |\n|---|---|\n| Ann | 31 |\n| Bob |",
    '{"id": 17, "tags": ["red", "green"], "size":',
    "Q: If I have three apples and eat one, how many are left?\nA:",
    "SELECT customers.name, SUM(orders.total) FROM customers",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing "
    "before us, we were all going direct to Heaven, we were all going direct the other way. " * 3,  # over 256 tokens
]


@dataclass(frozen=True)
class Generated:
    """What all prompts generated side by side, and the logits of their first and of their last step."""

    prompts: list[list[int]]
    outputs: list[list[int]]
    first_logits: np.ndarray  # [prompts, vocabulary]
    last_logits: np.ndarray


@pytest.fixture(scope="module")
def loaded(default_model_path: Path) -> LoadedModel:
    return load(str(default_model_path))


@pytest.fixture(scope="module")
def scheduler(loaded: LoadedModel) -> HandScheduler:
    options = {"num_kv_blocks": 400, "max_num_seqs": 24, "max_num_batched_tokens": 1024}
    return native_scheduler(
        loaded.spec, loaded.weights, dtype="fp32", threads=min(2, len(os.sched_getaffinity(0))), **options
    )


@pytest.fixture(scope="module")
def generated(loaded: LoadedModel, scheduler: HandScheduler) -> Generated:
    """Let sixteen prompts start at once and four more join them later; each decodes greedily."""
    tokenizer = Tokenizer.from_gguf(loaded.tokenizer_source.metadata)
    prompts = {f"r{i}": tokenizer.encode(text) for i, text in enumerate(PROMPTS)}
    vocab_size = loaded.spec.vocab_size
    first, last = np.empty((2, len(prompts), vocab_size), np.float32)
    joining = [list(prompts)[:16], list(prompts)[16:18], list(prompts)[18:]]
    for request_id, prompt in prompts.items():
        scheduler.seat(request_id, prompt)
    running: list[str] = []
    while joining or running:
        newcomers = joining.pop(0) if joining else []
        scheduler.step(dict.fromkeys(running, 1) | {request_id: len(prompts[request_id]) for request_id in newcomers})
        running += newcomers
        logits = scheduler.runner.last_logits()
        for row, request_id in enumerate(list(running)):
            count = len(scheduler.sequences[request_id]) - len(prompts[request_id])
            if count == 1:
                first[int(request_id[1:])] = logits[row]
            if count == NUM_TOKENS:
                last[int(request_id[1:])] = logits[row]
                running.remove(request_id)
                scheduler.release(request_id)
    outputs = [scheduler.sequences[request_id][len(prompt) :] for request_id, prompt in prompts.items()]
    return Generated(list(prompts.values()), outputs, first, last)


@pytest.fixture(scope="module")
def network(loaded: LoadedModel) -> Iterator[Any]:
    """Build the model from the same values, its rotary embedding from its name's well-known base."""
    spec, weights = loaded.spec, loaded.weights
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        max_position_embeddings=spec.max_position_embeddings,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    names = {
        "self_attn.q_proj": "q",
        "self_attn.k_proj": "k",
        "self_attn.v_proj": "v",
        "self_attn.o_proj": "attention_output",
        "mlp.gate_proj": "gate",
        "mlp.up_proj": "up",
        "mlp.down_proj": "down",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
    }
    slots = {"model.embed_tokens.weight": "token_embedding", "model.norm.weight": "output_norm"}
    for i in range(spec.num_layers):
        slots |= {f"model.layers.{i}.{name}.weight": f"layers.{i}.{slot}" for name, slot in names.items()}
    state = {name: torch.from_numpy(weights[slot].dequantize()) for name, slot in slots.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are not in the state
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, every small operation waits for whoever has lost its core
    yield model.eval()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def expected_logits(network: Any, generated: Generated) -> list[Any]:
    """Return for each prompt the logits [NUM_TOKENS, vocabulary] before each of the tokens that it generated.

    By induction they are those of transformers' own greedy search as long as each token is their argmax.
    """
    logits = []
    for prompt, output in zip(generated.prompts, generated.outputs, strict=True):
        token_ids = torch.tensor([[*prompt, *output[:-1]]])
        with torch.inference_mode():
            hidden = network.model(token_ids).last_hidden_state[0, len(prompt) - 1 :]
            logits.append(network.lm_head(hidden))
    return logits


def test_prompts_are_varied_and_so_are_their_answers(generated: Generated) -> None:
    lengths = [len(prompt) for prompt in generated.prompts]
    assert len(lengths) == 20
    assert min(lengths) == 1
    assert max(lengths) > 256
    assert len(set(map(tuple, generated.outputs))) == 20
    assert {len(output) for output in generated.outputs} == {NUM_TOKENS}


def test_greedy_tokens_equal_those_of_transformers(generated: Generated, expected_logits: list[Any]) -> None:
    num_ties = 0
    for output, logits in zip(generated.outputs, expected_logits, strict=True):
        values, ids = logits.topk(2, dim=-1)
        for token, (best, second), (best_id, second_id) in zip(output, values.tolist(), ids.tolist(), strict=True):
            if token != best_id:
                assert (token, best - second < TIE) == (second_id, True)
                num_ties += 1
    assert num_ties <= MAX_TIES


def test_logits_equal_those_of_transformers(generated: Generated, expected_logits: list[Any]) -> None:
    for index, logits in enumerate(expected_logits):
        for actual, expected in (
            (generated.first_logits[index], logits[0].numpy()),
            (generated.last_logits[index], logits[-1].numpy()),
        ):
            assert np.abs(actual - expected).max() <= 2e-3 * np.abs(expected).max()


def test_requests_alone_generate_the_same_tokens(scheduler: HandScheduler, generated: Generated) -> None:
    """One after the other: every prompt scores its own answer, and four decode it again, token by token."""
    params = SamplingParams(temperature=0.0, prompt_logprobs=1)
    for index, (prompt, output) in enumerate(zip(generated.prompts, generated.outputs, strict=True)):
        known = [*prompt, *output[:-1]]
        scheduler.seat("alone", known, params=params)
        result = scheduler.step({"alone": len(known)})
        assert [entry.rank for entry in result.prompt_logprobs["alone"][len(prompt) - 1 :]] == [1] * (NUM_TOKENS - 1)
        assert result.sampled[0].token_ids[0] == output[-1]
        scheduler.release("alone")
        if index % 5 == 4:
            scheduler.seat("alone", prompt)
            scheduler.step({"alone": len(prompt)})
            scheduler.decode("alone", steps=NUM_TOKENS - 1)
            assert scheduler.sequences["alone"][len(prompt) :] == output
            scheduler.release("alone")
