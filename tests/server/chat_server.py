"""A server whose runner answers by script: what the last message of a chat says decides what comes."""

from __future__ import annotations

import logging
import sys
import time

from hotseat.core.batch import Batch, NewRequest, StepOutput
from hotseat.server import ServerConfig, ServerServices, run_app
from hotseat.text import ChatTemplate
from server.fakes import EOS, REPLY, TEMPLATE, FakeRunner, FakeServer

THINKING_AND_TOOLS = "{# <think> </think> #}{% if tools %}<tool_call>{{ tools }}{% endif %}" + TEMPLATE
SCRIPTS = {
    "<user>think\n": "<think>\nIt rains.\n</think>\n\nTake a coat.",
    "<user>call\n": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
}


class ScriptedRunner(FakeRunner):
    """Writes the script that the prompt asks for, then ends; without one, the fake's own words for ever."""

    def execute(self, batch: Batch) -> StepOutput:
        time.sleep(0.004)
        return super().execute(batch)

    def _next_token(self, seat: object) -> int:
        taken: NewRequest = seat.taken  # type: ignore[attr-defined]
        prompt = bytes(taken.token_ids[: taken.num_prompt_tokens]).decode()
        last = prompt.removesuffix("<assistant>")
        script = next((text for ending, text in SCRIPTS.items() if last.endswith(ending)), None)
        done = len(seat.token_ids) - taken.num_prompt_tokens  # type: ignore[attr-defined]
        data = (script or REPLY).encode()
        if script is not None and done >= len(data):
            return EOS
        return data[done % len(data)]


def services() -> ServerServices:
    values = {"max_model_len": 4096, "num_kv_blocks": 4096}
    template = {"chat_template": ChatTemplate(THINKING_AND_TOOLS)}
    return FakeServer(runner=ScriptedRunner(), starts=False, services=template, **values).services


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.INFO)
    sys.exit(run_app(services, ServerConfig(port=0)))
