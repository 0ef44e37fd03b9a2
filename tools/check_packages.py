"""Build sdist and wheel, and try both in bare environments: is everything in them, does it run, where does it run?

1. The sdist, built from the working tree, has every file that git has.
2. The wheel, built from the sdist alone, has every file of the package and needs no newer glibc and libstdc++ than
   manylinux_2_28 has.
3. Installed into an empty virtual environment it says its version and completes a text with the native runner.
4. Where there is no compiler, pip makes a wheel from the sdist all the same; it completes the same text with the
   reference runner, after one warning.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANYLINUX = (2, 28)
GENERATE = ("generate", "a b c", "--max-tokens", "4", "--temperature", "0", "--dtype", "fp32")


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command outside the source tree; what it printed comes with the error when it fails."""
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd="/", env=environment, check=False
    )
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def require(condition: bool, complaint: str) -> None:
    if not condition:
        sys.exit(f"packages: {complaint}")


def tracked(*folders: str) -> set[str]:
    command = ["git", "-c", "safe.directory=*", "ls-files", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def build_sdist(folder: Path) -> Path:
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    require(not (missing := tracked() - names), f"the sdist lacks {sorted(missing)}")
    say(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB, {len(names)} files")
    return path


def build_wheel(sdist: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    """Let pip build a wheel from the sdist, in an environment of its own with nothing but what the sdist asks for."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", folder, sdist, environment=environment)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    wanted = {name.removeprefix("src/") for name in tracked("src")}
    require(not (missing := wanted - names), f"the wheel lacks {sorted(missing)}")
    say(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB, {len(names)} files")
    return path


def check_platform(wheel: Path) -> None:
    """Refuse a wheel that needs symbols which manylinux_2_28 does not have."""
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel).stdout
    tags = re.findall(r'"manylinux_(\d+)_(\d+)_\w+"', " ".join(shown.split()))
    require(bool(tags), f"auditwheel finds no platform for the wheel:\n{shown}")
    version = int(tags[0][0]), int(tags[0][1])
    require(version <= MANYLINUX, f"the wheel needs manylinux_{version[0]}_{version[1]}:\n{shown}")
    say(f"needs manylinux_{version[0]}_{version[1]}")


def without_compiler(folder: Path) -> dict[str, str]:
    """Return an environment in which no compiler works."""
    broken = folder / "broken-compiler"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    return dict(os.environ) | {"CC": str(broken), "CXX": str(broken)}


def install(wheel: Path, environment: Path, *options: str) -> Path:
    """Install ``wheel`` and return the folder of commands."""
    commands = environment / "bin"
    run(commands / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *options, wheel)
    return commands


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sdist = build_sdist(folder)
        native = build_wheel(sdist, folder / "native", os.environ)
        require("none-any" not in native.name, "the wheel has no extension")
        check_platform(native)
        pure = build_wheel(sdist, folder / "pure", without_compiler(folder))
        require("none-any" in pure.name or not has_extension(pure), "a wheel without a compiler has an extension")

        sys.path.insert(0, str(ROOT / "tests"))
        from tiny_models import write_tiny_hf_model

        model = str(write_tiny_hf_model(folder / "tiny"))
        venv.create(folder / "bare", with_pip=True)
        commands = install(native, folder / "bare")
        version = run(commands / "hotseat", "--version").stdout.strip()
        require(version == f"hotseat {native.name.split('-')[1]}", f"the wheel {native.name} says {version!r}")
        with_native = run(commands / "hotseat", *GENERATE, "--model", model, "--runner", "native")
        require("WARNING" not in with_native.stderr, f"the native runner warned:\n{with_native.stderr}")
        say(f"{version} completes with the native runner")
        install(pure, folder / "bare", "--force-reinstall", "--no-deps")
        with_reference = run(commands / "hotseat", *GENERATE, "--model", model)
        warnings = with_reference.stderr.count("WARNING")
        require(warnings == 1, f"{warnings} warnings without a compiler, not one:\n{with_reference.stderr}")
        require(with_reference.stdout == with_native.stdout, "the reference runner's text is another one")
        say("without a compiler the reference runner completes the same, after one warning")
    return 0


def has_extension(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return any(name.endswith(".so") for name in archive.namelist())


if __name__ == "__main__":
    sys.exit(main())
