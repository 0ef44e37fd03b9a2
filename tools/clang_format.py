"""Format the C++ sources with the clang-format of this environment, or check that they are formatted."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cc", ".cpp", ".hpp"}


def main() -> int:
    files = sorted(str(path) for path in (ROOT / "csrc").rglob("*") if path.suffix in SUFFIXES)
    if not files:
        return 0
    mode = ["--dry-run", "-Werror"] if "--check" in sys.argv[1:] else ["-i"]
    executable = Path(sys.executable).with_name("clang-format")
    return subprocess.run([str(executable), *mode, *files], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
