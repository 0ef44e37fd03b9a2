from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hotseat.models import DEFAULT_MODEL, default_cache_dir, ensure_model
from hotseat.models.gguf import read_gguf


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    return ensure_model(DEFAULT_MODEL, default_cache_dir(os.environ))


@pytest.fixture(scope="session")
def smollm_metadata(smollm_path: Path) -> dict[str, Any]:
    """What the reader returns, and not a tidier form of it."""
    return dict(read_gguf(smollm_path).metadata)
