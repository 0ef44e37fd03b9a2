"""A tiny model for the tests of vLLM's shapes."""

from pathlib import Path

import pytest

from tiny_models import write_tiny_hf_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny")
    return str(path)
