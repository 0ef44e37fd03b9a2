"""Serve the engine over HTTP as OpenAI's clients expect it, and show what it is doing.

Must not know: how requests are scheduled, models, weights, command lines, the environment.
"""

from __future__ import annotations

from hotseat.server.app import create_app
from hotseat.server.config import ServerConfig
from hotseat.server.lifecycle import run_app
from hotseat.server.services import ModelInfo, ServerServices

__all__ = ["ModelInfo", "ServerConfig", "ServerServices", "create_app", "run_app"]
