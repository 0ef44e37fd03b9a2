"""A hub on 127.0.0.1 that serves directories as models, and remembers what it was asked."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """``models`` maps ids to directories; those of ``gated`` are refused with 403 unless ``token`` comes along."""

    models: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    token: str = "secret"
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""

    def fetched(self) -> set[str]:
        """Return the names of files whose content was sent."""
        return {line.rsplit("/", 1)[-1] for line in self.requests if line.startswith("GET") and "/resolve/" in line}


@contextmanager
def serve_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve ``hub`` until the block ends."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        """Keep quiet."""

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.served.requests.append(f"{self.command} {path}")
        parts = path.removeprefix("/api/models").strip("/").split("/")
        model_id, (verb, revision, *rest) = "/".join(parts[:2]), parts[2:] or ("revision", "main")
        if model_id not in self.served.models:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif model_id in self.served.gated and self.headers["Authorization"] != f"Bearer {self.served.token}":
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif revision not in ("main", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send_from(model_id, self.served.models[model_id], verb, "/".join(rest))

    def _send_from(self, model_id: str, directory: Path, verb: str, name: str) -> None:
        files = {str(file.relative_to(directory)): file for file in sorted(directory.rglob("*")) if file.is_file()}
        if verb == "revision":
            siblings = [{"rfilename": file} for file in files]
            self._send_json({"id": model_id, "sha": COMMIT, "siblings": siblings})
        elif verb == "tree":
            entries = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": _etag(file)}
                for name, file in files.items()
            ]
            self._send_json(entries)
        elif name in files:
            headers = {"ETag": f'"{_etag(files[name])}"', "X-Repo-Commit": COMMIT}
            self._send(200, files[name].read_bytes(), headers)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
