"""A chat with a running server: the same stream of pieces that ``LLM.stream_chat`` gives, through HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from hotseat.errors import HotseatError, InvalidRequestError

__all__ = ["RemoteChat"]

TIMEOUT_S = 600.0


class RemoteChat:
    """The model that a server at ``url`` serves; ``fields`` go into each request."""

    def __init__(self, url: str, api_key: str | None, fields: Mapping[str, Any]) -> None:
        """Ask the server for its model.

        Raises:
            HotseatError: it cannot be reached, or refuses.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._fields = dict(fields)
        self.num_tokens = 0  # of the last answer, as the server counted them
        with closing(self._open("/v1/models", None)) as response:
            self.name: str = json.load(response)["data"][0]["id"]

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], params: object = None) -> Iterator[str]:
        """Answer one conversation piece by piece; leaving early ends it.

        Raises:
            InvalidRequestError: the conversation does not fit the model.
            HotseatError: the server cannot be reached, or fails.
        """
        body = {"model": self.name, "messages": list(messages), "stream": True, **self._fields}
        self.num_tokens = 0
        response = self._open("/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
        with closing(response):
            for line in response:
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or data == b"[DONE]":
                    continue
                chunk = json.loads(data)
                if chunk.get("error"):
                    raise HotseatError(f"the answer broke off: {chunk['error'].get('message')}")
                self.num_tokens = (chunk.get("usage") or {}).get("completion_tokens") or self.num_tokens
                for choice in chunk["choices"]:
                    if text := choice["delta"].get("content"):
                        yield text

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        try:
            request = urllib.request.Request(self._url + path, data, headers)
            return urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (OSError, ValueError) as error:
            raise HotseatError(f"no answer from {self._url}: {getattr(error, 'reason', None) or error}") from None


def _refusal(error: urllib.error.HTTPError) -> HotseatError:
    try:
        message = str(json.load(error)["error"]["message"])
    except (LookupError, TypeError, ValueError):
        message = f"HTTP {error.code}"
    return InvalidRequestError(message) if error.code == 400 else HotseatError(message)
