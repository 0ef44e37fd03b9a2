"""``AsyncLLM``: requests one by one, in vLLM's shapes."""

import asyncio
import logging

import pytest

from hotseat import LLM, AsyncLLM, EngineArgs, RequestOutput, RequestOutputKind, SamplingParams
from hotseat.errors import EngineStoppedError, InvalidRequestError

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
OPTIONS = {"runner": "reference", "dtype": "fp32", "max_num_seqs": 4}


async def collect(
    llm: AsyncLLM, prompt: str, params: SamplingParams = PARAMS, request_id: str = "r"
) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params, request_id)]


def test_outputs_grow_to_what_llm_gives(tiny_model: str) -> None:
    async def run() -> list[list[RequestOutput]]:
        async with AsyncLLM.from_engine_args(EngineArgs(tiny_model, **OPTIONS)) as llm:
            return await asyncio.gather(*(collect(llm, f"{i}: a hot seat", request_id=str(i)) for i in range(6)))

    found = asyncio.run(run())
    with LLM(tiny_model, **OPTIONS) as llm:
        whole = llm.generate([f"{i}: a hot seat" for i in range(6)], PARAMS, use_tqdm=False)
    for outputs, expected in zip(found, whole, strict=True):
        assert outputs[-1].outputs[0].token_ids == expected.outputs[0].token_ids
        assert outputs[-1].outputs[0].text == expected.outputs[0].text
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        assert lengths == sorted(lengths)
        assert lengths[0] < 8
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert outputs[-1].prompt == expected.prompt


@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY])
def test_the_kind_of_output_says_what_is_yielded(tiny_model: str, kind: RequestOutputKind) -> None:
    async def run() -> tuple[list[RequestOutput], RequestOutput]:
        async with AsyncLLM(tiny_model, **OPTIONS) as llm:
            parts = await collect(llm, "a hot seat", PARAMS.clone(output_kind=kind))
            return parts, (await collect(llm, "a hot seat"))[-1]

    parts, whole = asyncio.run(run())
    assert "".join(part.outputs[0].text for part in parts) == whole.outputs[0].text
    assert [token for part in parts for token in part.outputs[0].token_ids] == whole.outputs[0].token_ids
    assert (len(parts) == 1) == (kind is RequestOutputKind.FINAL_ONLY)
    assert parts[-1].metrics is not None
    assert parts[-1].metrics.num_generation_tokens == 8


def test_abort_ends_a_request_by_its_id_and_no_other(tiny_model: str) -> None:
    async def run() -> tuple[RequestOutput, list[RequestOutput]]:
        async with AsyncLLM(tiny_model, **OPTIONS) as llm:
            other = asyncio.create_task(collect(llm, "a hot seat", request_id="other"))
            last = None
            async for output in llm.generate("a hot seat", PARAMS.clone(max_tokens=400), "mine"):
                last = output
                await llm.abort("mine")
            await llm.abort("nobody")
            assert last is not None
            return last, await other

    last, other = asyncio.run(run())
    assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
    assert len(other[-1].outputs[0].token_ids) == 8


def test_metrics_are_in_order(tiny_model: str) -> None:
    async def run() -> RequestOutput:
        async with AsyncLLM(tiny_model, **OPTIONS) as llm:
            await llm.check_health()
            return (await collect(llm, "a hot seat"))[-1]

    metrics = asyncio.run(run()).metrics
    assert metrics is not None
    times = [metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]


def test_what_cannot_be_is_refused(tiny_model: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        llm = AsyncLLM(tiny_model, **OPTIONS)
        with pytest.raises(InvalidRequestError, match="does not look at priority"):
            await anext(llm.generate("a", PARAMS, "r", priority=3))
        tokenizer = await llm.get_tokenizer()
        assert tokenizer.decode(tokenizer.encode("a hot seat")) == "a hot seat"
        assert await llm.reset_prefix_cache()
        llm.shutdown()
        llm.shutdown()
        with pytest.raises(EngineStoppedError):
            await collect(llm, "a")
        with pytest.raises(RuntimeError):
            await llm.check_health()

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(run())
