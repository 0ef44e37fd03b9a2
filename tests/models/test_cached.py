"""Models that lie in the caches: listed with their sizes, and deleted by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotseat import cli
from hotseat.errors import ModelNotFoundError
from hotseat.models import cached, cached_models, remove_cached


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Hotseat's cache with its default model, and a hub's with one model and one data set."""
    own, hub = tmp_path / "own", tmp_path / "hub"
    monkeypatch.setattr(cached, "DEFAULT_MODEL", replace(cached.DEFAULT_MODEL, num_bytes=5))
    (own / "models").mkdir(parents=True)
    (own / "models" / cached.DEFAULT_MODEL.file_name).write_bytes(b"GGUF!")
    for name, file in (("models--owner--small", "model.safetensors"), ("models--owner--words", "vocab.txt")):
        blob, snapshot = hub / name / "blobs" / "abc", hub / name / "snapshots" / ("0" * 40)
        blob.parent.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        blob.write_bytes(b"x" * 1000)
        (snapshot / file).symlink_to(blob)
        (hub / name / "refs").mkdir()
        (hub / name / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    return own, hub


def test_both_caches_are_listed_and_what_is_no_model_is_not(caches: tuple[Path, Path]) -> None:
    own, hub = caches
    found = {one.name: one.num_bytes for one in cached_models(own, hub)}
    assert found == {"owner/small": 1000, cached.DEFAULT_MODEL.name: 5}
    assert cached_models(own / "none", hub / "none") == []


def test_a_model_is_deleted_by_name_and_no_other(caches: tuple[Path, Path]) -> None:
    own, hub = caches
    assert remove_cached("owner/small", own, hub).num_bytes == 1000
    assert remove_cached(cached.DEFAULT_MODEL.name, own, hub).num_bytes == 5
    assert [path.name for path in hub.iterdir()] == ["models--owner--words"]
    with pytest.raises(ModelNotFoundError, match="no model owner/small in the caches, only: none"):
        remove_cached("owner/small", own, hub)


def test_the_commands_list_and_delete(caches: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    own, _ = caches
    assert cli.main(["models", "--cache-dir", str(own)]) == 0
    assert f"\n  {cached.DEFAULT_MODEL.name}  (0 MB)  {own}" in capsys.readouterr().out
    assert cli.main(["rm", cached.DEFAULT_MODEL.name, "--cache-dir", str(own)]) == 0
    assert "deleted" in capsys.readouterr().out
    assert cli.main(["rm", "--cache-dir", str(own)]) == 2
    assert "a model is missing: hotseat rm MODEL" in capsys.readouterr().err
