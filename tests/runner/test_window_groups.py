"""Layers with a window in blocks of their own: the bits are those of a cache that keeps everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotseat.core.config import SchedulerConfig
from hotseat.core.kv_layout import KvLayout
from hotseat.core.request import Request, RequestId, SamplingParams
from hotseat.core.scheduler import Scheduler
from hotseat.models import DecoderSpec, Weights, load
from hotseat.models.spec import LayerSpec
from hotseat.runner.config import RunnerConfig, kv_bytes_per_block, kv_layout_of, kv_tables
from hotseat.runner.reference import ReferenceRunner
from runner.hand_batches import memory_weights, tiny_spec
from tiny_models import TinyLlama
from twins import TWINS, write_twin

native = pytest.importorskip("hotseat.runner.native")
from runner.native_cases import ISAS  # noqa: E402 (needs the extension)

WINDOW = 21  # no multiple of a block, shorter than the prompts
MODEL = TinyLlama(num_layers=6)
SPEC = replace(
    tiny_spec(MODEL),
    layers=tuple(LayerSpec(window=None if index == 4 else WINDOW) for index in range(6)),
    max_position_embeddings=512,
)
WEIGHTS = memory_weights(MODEL)
MAX_MODEL_LEN = 320
GROUPS = kv_layout_of(SPEC, MAX_MODEL_LEN)
STEM = np.random.default_rng(3).integers(3, MODEL.vocab_size, 150).tolist()
# Beginnings of one text, some with ends of their own: hits of all lengths, also full ones.
PROMPTS = [STEM[:130], STEM[:130], [*STEM[:100], 7, 9, 11], STEM[:40], STEM[:128], [5, *STEM[:60]], STEM[:17]]
Answers = list[list[tuple[int, float]]]


class Served:
    """A scheduler and a runner of the same layout, and what they answered."""

    def __init__(
        self,
        *,
        layout: KvLayout,
        model: tuple[DecoderSpec, Weights] = (SPEC, WEIGHTS),
        reference: bool = False,
        **options: Any,
    ) -> None:
        shared: dict[str, Any] = {
            "block_size": 16,
            "num_kv_blocks": 400,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": MAX_MODEL_LEN,
            "kv_layout": layout,
        }
        names = SchedulerConfig.__dataclass_fields__
        shared |= {name: value for name, value in options.items() if name in shared}
        own = {name: value for name, value in options.items() if name in names and name not in shared}
        rest = {name: value for name, value in options.items() if name not in names}
        self.scheduler = Scheduler(SchedulerConfig(**shared, **own))
        runner_class = ReferenceRunner if reference else native.NativeRunner
        self.runner = runner_class(*model, RunnerConfig(**({"dtype": "int8", "threads": 1} | shared | rest)))
        self.most_used = 0
        self.num_added = 0

    def answer(self, prompts: list[list[int]], *, at_once: bool = True, max_tokens: int = 30) -> Answers:
        """Return tokens and log-probabilities of each prompt."""
        answers: dict[str, list[tuple[int, float]]] = {}
        for prompt in prompts:
            self.num_added += 1
            request = Request(
                id=RequestId(f"r{self.num_added}"),
                prompt_token_ids=list(prompt),
                params=SamplingParams(max_tokens=max_tokens, temperature=0.7, seed=5, logprobs=0),
                arrived_at=0.0,
                seed=5,
            )
            self.scheduler.add(request, 0.0)
            answers[request.id] = []
            if not at_once:
                self._run(answers)
        self._run(answers)
        return list(answers.values())

    def _run(self, answers: dict[str, list[tuple[int, float]]]) -> None:
        while self.scheduler.has_work:
            batch = self.scheduler.schedule(0.0)
            self.most_used = max(self.most_used, batch.blocks_used)
            for update in self.scheduler.update(batch, self.runner.execute(batch), 0.0):
                assert update.error is None
                pairs = zip(update.new_token_ids, update.logprobs or (), strict=True)
                answers[update.request_id] += [(token, entry.logprob) for token, entry in pairs]
            self.scheduler.check_invariants()


@pytest.fixture(scope="module")
def expected() -> Answers:
    """Return what each prompt gets alone, with nothing cached and every block kept."""
    served = Served(layout=KvLayout(), enable_prefix_caching=False)
    return [served.answer([prompt])[0] for prompt in PROMPTS]


def test_layers_with_a_window_form_a_group_of_as_many_blocks_as_divide_both() -> None:
    assert KvLayout(1, 5, WINDOW) == GROUPS
    assert kv_tables(SPEC, GROUPS) == [1, 2, 3, 4, 0, 5]
    assert kv_bytes_per_block(SPEC, "bf16", 16, GROUPS) * 6 == kv_bytes_per_block(SPEC, "bf16", 16)
    two = replace(SPEC, layers=SPEC.layers * 2)
    assert kv_layout_of(two, MAX_MODEL_LEN) == GROUPS
    assert kv_tables(two, GROUPS) == [1, 1, 2, 2, 0, 3, 3, 4, 4, 5, 0, 5]


def test_one_layer_keeps_its_blocks_where_all_have_a_window() -> None:
    spec = replace(SPEC, layers=(LayerSpec(window=WINDOW),) * 6)
    assert kv_layout_of(spec, MAX_MODEL_LEN) == KvLayout(1, 5, WINDOW)
    assert kv_tables(spec, GROUPS) == [0, 1, 2, 3, 4, 5]


def test_nothing_is_apart_where_no_sequence_is_longer_than_a_window() -> None:
    assert kv_layout_of(SPEC, WINDOW) == KvLayout()
    assert kv_layout_of(replace(SPEC, layers=(LayerSpec(),) * 6), MAX_MODEL_LEN) == KvLayout()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("budget", [8, 37, 256])
def test_bits_are_those_of_a_cache_that_keeps_everything(expected: Answers, isa: str, budget: int) -> None:
    served = Served(layout=GROUPS, isa=isa, max_num_batched_tokens=budget, threads=1 + (budget == 37))
    assert served.answer(PROMPTS) == expected
    assert served.answer(PROMPTS) == expected  # from the prefix cache, where it can be
    assert served.scheduler.stats().num_cached_tokens > 0


def test_bits_are_the_same_one_after_the_other_from_the_prefix_cache(expected: Answers) -> None:
    served = Served(layout=GROUPS)
    assert served.answer([*PROMPTS, *reversed(PROMPTS)], at_once=False) == [*expected, *reversed(expected)]
    assert served.scheduler.stats().num_cached_tokens > 600


@pytest.mark.parametrize("capacity_policy", ["max-utilization", "no-evict"])
def test_bits_are_the_same_when_blocks_are_short(expected: Answers, capacity_policy: str) -> None:
    served = Served(layout=GROUPS, num_kv_blocks=58, capacity_policy=capacity_policy, max_num_batched_tokens=32)
    assert served.answer(PROMPTS) == expected
    stats = served.scheduler.stats()
    assert stats.num_evictions > 0
    assert (stats.num_preemptions > 0) == (capacity_policy == "max-utilization")


def test_reference_reads_nothing_behind_the_window() -> None:
    options: dict[str, Any] = {"reference": True, "dtype": "fp32", "block_size": 4, "max_num_batched_tokens": 16}
    prompts = [STEM[:50], STEM[:47]]
    kept = Served(layout=KvLayout(), enable_prefix_caching=False, **options)
    assert Served(layout=GROUPS, **options).answer(prompts, max_tokens=8) == [
        kept.answer([prompt], max_tokens=8)[0] for prompt in prompts
    ]


def test_long_prompt_holds_what_the_windows_see_and_the_full_layers_need() -> None:
    served = Served(layout=GROUPS)
    served.answer([STEM[:150] * 2], max_tokens=1)
    # 19 blocks of the full layer; of the others the 20 tokens before a chunk, and its 64: 6 logical blocks of 5.
    assert served.most_used == 19 + 6 * 5


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["gemma3", "mistral-window", "olmo3"])
def test_twins_answer_with_the_same_bits(name: str, tmp_path: Path) -> None:
    write_twin(TWINS[name], tmp_path / "model")
    loaded = load(str(tmp_path / "model"))
    model, layout = (loaded.spec, loaded.weights), kv_layout_of(loaded.spec, 256)
    assert layout.num_window > 0
    kept = Served(layout=KvLayout(), model=model, enable_prefix_caching=False, max_model_len=256)
    wanted = [kept.answer([prompt])[0] for prompt in PROMPTS]
    roomy = Served(layout=layout, model=model, max_model_len=256, max_num_batched_tokens=40, threads=2)
    assert roomy.answer(PROMPTS) == wanted
    assert roomy.answer(PROMPTS) == wanted
    size = layout.num_full + layout.num_window
    short = Served(layout=layout, model=model, max_model_len=256, num_kv_blocks=12 * size, max_num_batched_tokens=24)
    assert short.answer(PROMPTS) == wanted
    assert short.scheduler.stats().num_preemptions > 0
