"""The client of ``hotseat explain``: where the requests of a running server are, in words."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hotseat.errors import HotseatError, InvalidRequestError
from hotseat.loadgen.http_client import HttpClient, Response

__all__ = ["ExplainOptions", "explain", "get_json"]

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The request to explain, and its server."""

    request_id: str | None = field(
        default=None,
        metadata={
            "help": "an answer's id, or your own X-Request-Id, also of one that ended lately "
            "(default: all that are under way)"
        },
    )
    url: str = field(default="http://127.0.0.1:8000", metadata={"help": "address of the server"})
    api_key: str | None = field(default=None, metadata={"help": "key, if the server wants one"})


def explain(chosen: ExplainOptions) -> str:
    """Return one paragraph for each sequence.

    Raises:
        InvalidRequestError: no such request is under way, or among the last that ended.
        HotseatError: the server cannot be reached, or refuses.
    """
    if chosen.request_id is None:
        answers = []
        after = ""
        while after is not None:
            page = get_json(chosen, f"/v1/requests?after={quote(after, safe='')}")
            answers += page["data"]
            after = page.get("next")
    else:
        found = get_json(chosen, f"/v1/requests/{quote(chosen.request_id, safe='')}/explain")
        answers = [found]
    if not answers:
        return "no request is running or waiting\n"
    return "".join(_paragraph(one, answer["client_request_id"]) for answer in answers for one in answer["sequences"])


def get_json(chosen: ExplainOptions, path: str) -> Any:
    """Return the JSON at ``path`` of the server.

    Raises:
        InvalidRequestError: there is nothing at ``path``.
        HotseatError: the server cannot be reached, or refuses.
    """
    try:
        response = asyncio.run(_fetch(chosen, path))
        answer = json.loads(response.body)
    except (OSError, TimeoutError, ValueError) as error:
        raise HotseatError(f"no answer from {chosen.url}: {error or type(error).__name__}") from None
    if response.status == 200:
        return answer
    try:
        message = str(answer["error"]["message"])
    except (LookupError, TypeError):
        message = f"HTTP {response.status}"
    raise InvalidRequestError(message) if response.status == 404 else HotseatError(message)


async def _fetch(chosen: ExplainOptions, path: str) -> Response:
    client = HttpClient(chosen.url, api_key=chosen.api_key)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await client.get(path)
    finally:
        client.close()


def _paragraph(one: dict[str, Any], client_id: str | None) -> str:
    lines = [one["request_id"] + (f" ({client_id})" if client_id else "")]
    lines += _ended(one) if one["status"] == "finished" else _under_way(one)
    waits = [f"{seconds:.3f} s {reason}" for reason, seconds in one["waited_s"].items() if seconds >= 0.0005]
    if waits:
        lines.append("waited " + ", ".join(waits))
    if one["times_passed"]:
        lines.append(f"passed {one['times_passed']} times, last by {', '.join(one['passed_by'])}")
    if one["num_preemptions"]:
        lines.append(f"preempted {one['num_preemptions']} times, last: {'; '.join(one['preempted_by'])}")
    return "\n  ".join(lines) + "\n"


def _under_way(one: dict[str, Any]) -> list[str]:
    computed = f"{one['num_computed_tokens']} of {one['num_prompt_tokens'] + one['num_output_tokens']} tokens computed"
    lines = [f"{one['status']}: {one['reason']}", f"{_tokens(one)}, {computed}{_cached(one)}"]
    if one["num_ahead"] is not None:
        lines.append(f"{one['num_ahead']} ahead, {one['num_free_seats']} seats and {one['blocks_free']} blocks free")
    return lines + _drafts(one)


def _ended(one: dict[str, Any]) -> list[str]:
    why = f": {one['error']}" if one["error"] else ""
    seated = "never had a seat" if one["admitted_at"] is None else f"a seat after {_since(one, 'admitted_at')}"
    first = "" if one["first_token_at"] is None else f", the first token after {_since(one, 'first_token_at')}"
    return [
        f"finished: {one['finish_reason']}{why}, after {_since(one, 'finished_at')}",
        f"{_tokens(one)}{_cached(one)}",
        f"{seated}{first}",
        *_drafts(one),
    ]


def _drafts(one: dict[str, Any]) -> list[str]:
    """Return a line on the tokens that were guessed and verified, where there were any."""
    if not one.get("num_draft_tokens"):  # an older server does not tell
        return []
    return [f"{one['num_accepted_tokens']} of {one['num_draft_tokens']} drafted tokens accepted"]


def _since(one: dict[str, Any], instant: str) -> str:
    return f"{one[instant] - one['arrived_at']:.3f} s"


def _tokens(one: dict[str, Any]) -> str:
    return f"{one['num_prompt_tokens']} prompt and {one['num_output_tokens']} output tokens"


def _cached(one: dict[str, Any]) -> str:
    return f", {one['num_cached_tokens']} from the cache" if one["num_cached_tokens"] else ""
