"""`hotseat serve` as a process, with a tiny model: everything is wired to everything."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tiny_models import write_tiny_hf_model


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[str]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return response.read().decode()

    def post(self, path: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """Start a server on a free port and wait for the line that says where it is."""
    command = [sys.executable, "-m", "hotseat", "serve", *options, "--port", "0", "--runner", "reference"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"at (http://[\d.:]+)", line):
                yield Server(found[1], process)
                return
        raise AssertionError(f"the server ended with status {process.wait()}")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny"))


def test_a_served_model_answers_is_counted_recorded_and_goes_down_in_good_order(model: str, tmp_path: Path) -> None:
    record = tmp_path / "steps.jsonl"
    options = ["--max-num-seqs", "4", "--num-kv-blocks", "40", "--served-model-name", "small", "--record", str(record)]
    with serving(model, *options, "--metrics-names", "both") as server:
        models = json.loads(server.get("/v1/models"))["data"]
        assert [entry["id"] for entry in models] == ["small"]
        assert models[0]["max_model_len"] == 512
        answer = server.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=5,
            temperature=0,
            ignore_eos=True,
        )
        assert answer["usage"]["completion_tokens"] == 5
        assert json.loads(server.get("/version"))["determinism"]["any_batch"] is True
        metrics = server.get("/metrics")
        assert 'vllm:generation_tokens_total{engine="0",model_name="small"} 5.0' in metrics
        assert 'num_gpu_blocks="40"' in metrics
        assert "hotseat:generation_tokens_total" in metrics
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
    steps = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(steps) >= 5
    assert all(step["blocks_used"] + step["blocks_free"] == 40 for step in steps)


def test_the_policy_decides_whether_priorities_count(model: str) -> None:
    with serving(model, "--scheduling-policy", "priority", "--num-kv-blocks", "40") as server:
        assert server.post("/v1/completions", prompt="a", max_tokens=1, priority=3)["choices"]
    with serving(model, "--num-kv-blocks", "40") as server, pytest.raises(urllib.error.HTTPError, match="400"):
        server.post("/v1/completions", prompt="a", max_tokens=1, priority=3)


def test_a_port_in_use_is_one_line_and_status_2(model: str) -> None:
    with serving(model, "--num-kv-blocks", "40") as server:
        port = server.url.rpartition(":")[2]
        command = [sys.executable, "-m", "hotseat", "serve", model, "--port", port]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(f"hotseat: error: cannot listen on 127.0.0.1 port {port}")
    assert result.stderr.count("\n") == 1
