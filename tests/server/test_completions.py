"""POST /v1/completions: what comes back for what is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hotseat.server.sampling import completion_sampling
from hotseat.server.schema import CompletionRequest
from server.fakes import EOS, FakeRunner, FakeServer, completion, texts_by_choice


def text_of(choice: dict) -> str:
    return choice["text"]


def test_a_completion_has_the_shape_of_openai(server: FakeServer) -> None:
    reply = server.post("/v1/completions", completion())
    answer = reply.json()
    assert reply.status == 200
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": server.text(8),
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert answer["usage"] == {
        "prompt_tokens": 13,
        "completion_tokens": 8,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_max_tokens_is_16_when_not_sent_or_null(server: FakeServer) -> None:
    body = completion()
    del body["max_tokens"]
    for request in (body, completion(max_tokens=None)):
        assert server.post("/v1/completions", request).json()["usage"]["completion_tokens"] == 16


def test_the_model_may_be_left_out_and_has_several_names(server: FakeServer) -> None:
    body = completion()
    del body["model"]
    assert server.post("/v1/completions", body).json()["model"] == "fake"
    assert server.post("/v1/completions", completion(model="org/fake")).json()["model"] == "org/fake"


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("hello", 1), (["hello", "you"], 2), ([104, 105], 1), ([[104, 105], [33], [34, 35]], 3)],
)
def test_prompts_are_texts_or_token_ids_or_lists_of_them(server: FakeServer, prompt: object, count: int) -> None:
    answer = server.post("/v1/completions", completion(prompt=prompt)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(count))
    assert all(choice["text"] == server.text(8) for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 8 * count


def test_choices_are_numbered_by_prompt_and_then_by_n(server: FakeServer) -> None:
    body = completion(prompt=["ab", "cd"], n=2, temperature=1, seed=5, echo=True)
    answer = server.post("/v1/completions", body).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert [text[:2] for text in texts] == ["ab", "ab", "cd", "cd"]
    assert texts[0][2:] == server.text(8, start=5)
    assert texts[0][2:] == texts[2][2:]
    assert texts[0] != texts[1]
    assert answer["usage"]["prompt_tokens"] == 4


def test_a_stream_brings_the_same_text_and_ends_each_choice_once(server: FakeServer) -> None:
    body = completion(prompt=["ab", "cd"], n=3, temperature=1, seed=7, max_tokens=40)
    whole = server.post("/v1/completions", body).json()
    reply = server.post("/v1/completions", body | {"stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = reply.events()
    assert texts_by_choice(events, text_of) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert sum(reason is not None for reason in reasons) == 6
    assert all("usage" not in event for event in events)


def test_usage_comes_in_one_chunk_without_choices_before_the_end(server: FakeServer) -> None:
    events = server.post("/v1/completions", completion(stream=True, stream_options={"include_usage": True})).events()
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert all(event["usage"] is None for event in events[:-1])


def test_continuous_usage_counts_along(server: FakeServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.post("/v1/completions", completion(stream=True, stream_options=options)).events()
    counts = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert all(event["usage"]["prompt_tokens"] == 13 for event in events)


def test_eos_ends_with_stop_and_no_stop_reason(start: Callable[..., FakeServer]) -> None:
    server = start(runner=FakeRunner(reply="Hi", ends=True))
    (choice,) = server.post("/v1/completions", completion(return_token_ids=True)).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hi", "stop", None)
    assert choice["token_ids"] == [*b"Hi", EOS]
    assert choice["prompt_token_ids"] == list(b"Say something")


def test_stop_strings_end_the_text_and_are_named(server: FakeServer) -> None:
    for stream in (False, True):
        body = completion(stop=["quick", "never"], max_tokens=40, stream=stream)
        reply = server.post("/v1/completions", body)
        choices = [choice for event in (reply.events() if stream else [reply.json()]) for choice in event["choices"]]
        assert "".join(choice["text"] for choice in choices) == "The "
        assert choices[-1]["finish_reason"] == "stop"
        assert choices[-1]["stop_reason"] == "quick"


def test_stop_token_ids_end_the_text(server: FakeServer) -> None:
    (choice,) = server.post("/v1/completions", completion(stop_token_ids=[ord("q")])).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("The ", "stop", ord("q"))


def test_ignore_eos_runs_to_max_tokens(start: Callable[..., FakeServer]) -> None:
    server = start(runner=FakeRunner(reply="Hi", ends=True))
    answer = server.post("/v1/completions", completion(ignore_eos=True)).json()
    assert answer["usage"]["completion_tokens"] == 8


def test_an_empty_answer_is_an_answer(start: Callable[..., FakeServer]) -> None:
    server = start(runner=FakeRunner(reply="x"))
    (choice,) = server.post("/v1/completions", completion(stop="x")).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    events = server.post("/v1/completions", completion(stop="x", stream=True)).events()
    assert [choice["finish_reason"] for event in events for choice in event["choices"]] == ["stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_request_of_lm_eval_scores_the_prompt_and_generates_nothing(server: FakeServer, stream: bool) -> None:
    prompt = list(b"1. Carol has 20")
    body = completion(prompt=prompt, echo=True, logprobs=1, max_tokens=0, stream=stream)
    reply = server.post("/v1/completions", body)
    (answer,) = reply.events() if stream else [reply.json()]
    (choice,) = answer["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "1. Carol has 20"
    assert choice["finish_reason"] == "length"
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == list(range(len(prompt)))
    assert logprobs["token_logprobs"] == [None] + [-0.25] * (len(prompt) - 1)
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {".": -0.25}


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_covers_prompt_and_answer_of_every_choice(server: FakeServer, stream: bool) -> None:
    body = completion(prompt="ab", echo=True, logprobs=0, max_tokens=4, n=2, seed=0, temperature=1, stream=stream)
    reply = server.post("/v1/completions", body)
    tokens: dict[int, list[str]] = {0: [], 1: []}
    texts = {0: "", 1: ""}
    for event in reply.events() if stream else [reply.json()]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
            tokens[choice["index"]] += choice["logprobs"]["tokens"]
    for index in (0, 1):
        assert texts[index].startswith("ab")
        assert len(texts[index]) == 6
        assert "".join(tokens[index]) == texts[index]


def test_logprobs_name_bytes_that_are_no_characters(start: Callable[..., FakeServer]) -> None:
    server = start(runner=FakeRunner(reply="é!"))
    answer = server.post("/v1/completions", completion(logprobs=2, max_tokens=3)).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["text"] == "é!"
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs["text_offset"] == [0, 0, 1]
    assert logprobs["top_logprobs"][2] == {"!": -0.25, '"': -0.5}


def test_tokens_can_be_named_by_their_ids(server: FakeServer) -> None:
    body = completion(logprobs=0, max_tokens=2, return_tokens_as_token_ids=True)
    logprobs = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{ord('T')}", f"token_id:{ord('h')}"]


def test_prompt_logprobs_have_the_shape_of_vllm(server: FakeServer) -> None:
    (choice,) = server.post("/v1/completions", completion(prompt="ab", prompt_logprobs=2)).json()["choices"]
    own = {"logprob": -0.25, "rank": 1, "decoded_token": "b"}
    second = {"logprob": -0.5, "rank": 2, "decoded_token": "c"}
    assert choice["prompt_logprobs"] == [None, {str(ord("b")): own, str(ord("c")): second}]


def test_the_same_seed_gives_the_same_text_and_no_seed_is_drawn(server: FakeServer) -> None:
    texts = [
        server.post("/v1/completions", completion(temperature=1, seed=seed)).json()["choices"][0]["text"]
        for seed in (3, 3, 4)
    ]
    assert texts[0] == texts[1] == server.text(8, start=3)
    assert texts[2] == server.text(8, start=4)


def test_cached_tokens_are_counted_in_the_usage(server: FakeServer) -> None:
    body = completion(prompt="x" * 40)
    details = [server.post("/v1/completions", body).json()["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert [detail["cached_tokens"] for detail in details] == [0, 32]
    salted = server.post("/v1/completions", body | {"cache_salt": "mine"}).json()["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


def test_defaults_of_the_model_apply_unless_sent(start: Callable[..., FakeServer]) -> None:
    server = start(services={"sampling_defaults": {"temperature": 0.0}})
    body = completion(seed=5)
    del body["temperature"]
    assert server.post("/v1/completions", body).json()["choices"][0]["text"] == server.text(8)
    sent = server.post("/v1/completions", body | {"temperature": 1}).json()
    assert sent["choices"][0]["text"] == server.text(8, start=5)


def test_token_ids_are_streamed_and_the_prompts_once(server: FakeServer) -> None:
    events = server.post("/v1/completions", completion(stream=True, return_token_ids=True)).events()
    choices = [choice for event in events for choice in event["choices"]]
    assert [token for choice in choices for token in choice["token_ids"]] == list(server.text(8).encode())
    assert [choice.get("prompt_token_ids") for choice in choices] == [
        list(b"Say something"),
        *[None] * (len(choices) - 1),
    ]


@pytest.mark.parametrize(("asked", "taken"), [(250.5, 100.0), (-1e30, -100.0), (7, 7.0)])
def test_a_logit_bias_is_clamped_to_its_range(asked: float, taken: float) -> None:
    body = CompletionRequest(prompt="a", logit_bias={"65": asked})
    assert completion_sampling(body, {}).logit_bias == ((65, taken),)
