"""What the tests of every room may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotseat.models import DEFAULT_MODEL, default_cache_dir, ensure_model


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """Return the default model's GGUF file, fetched once; tests that use it carry ``@pytest.mark.model``."""
    return ensure_model(DEFAULT_MODEL, default_cache_dir(os.environ))
