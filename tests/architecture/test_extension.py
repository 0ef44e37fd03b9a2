"""The extension where tests count: without it most tests of computing would be skipped in silence."""

import importlib.util
import os

import pytest


@pytest.mark.skipif("CI" not in os.environ, reason="a developer's machine may lack a compiler")
def test_the_extension_was_built() -> None:
    assert importlib.util.find_spec("hotseat.runner._native") is not None
