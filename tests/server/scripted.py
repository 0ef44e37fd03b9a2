"""A server process whose model says what its prompt tells it to say, between two control characters."""

from __future__ import annotations

import sys

from hotseat.server import ServerConfig, ServerServices, run_app
from hotseat.text import ChatTemplate
from server.fakes import EOS, TEMPLATE, FakeRunner, FakeServer, _Seat

BEGIN, END, FAIL = "\x01", "\x02", "\x03"
# In the manner of Qwen's: it shows tools, calls and results, and opens the reasoning when it is told to.
CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
SCRIPTED = (
    "{# </think> #}{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    + TEMPLATE.replace("{{ m.content }}", "{{ m.content }}" + CALLS)
    + "{% if add_generation_prompt and enable_thinking is defined %}"
    + "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def say(text: str) -> list[dict[str, str]]:
    """Return messages that are answered with ``text``."""
    return [{"role": "user", "content": f"{BEGIN}{text}{END}"}]


class ScriptedRunner(FakeRunner):
    """Writes the last script in its prompt and then the end, and fails where the script says so."""

    def _next_token(self, seat: _Seat) -> int:
        prompt = bytes(token for token in seat.token_ids[: seat.taken.num_prompt_tokens] if token < 256)
        script = prompt.rpartition(BEGIN.encode())[2].partition(END.encode())[0]
        done = len(seat.token_ids) - seat.taken.num_prompt_tokens
        if script[done : done + 1] == FAIL.encode():
            raise RuntimeError("the script says so")
        return script[done] if done < len(script) else EOS


def services() -> ServerServices:
    """Return services whose engine was not started."""
    server = FakeServer(
        runner=ScriptedRunner(),
        starts=False,
        max_model_len=4096,
        num_kv_blocks=4096,
        services={"chat_template": ChatTemplate(SCRIPTED)},
    )
    return server.services


if __name__ == "__main__":
    sys.exit(run_app(services, ServerConfig(port=int(sys.argv[1]))))
