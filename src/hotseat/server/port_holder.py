"""The process that listens on a port, as far as Linux lets us see it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["port_holder"]

_LISTENS = "0A"
MAX_COMMAND = 120


def port_holder(port: int, proc: Path = Path("/proc")) -> str:
    """Return `` by process PID (its command line)``, or nothing where it cannot be seen."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    for folder in proc.glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                command = " ".join(words).strip()
                return f" by process {folder.name} ({command[:MAX_COMMAND]}{'…' if len(command) > MAX_COMMAND else ''})"
        except OSError:  # of another user, or gone
            continue
    return ""


def _inodes(port: int, proc: Path) -> set[str]:
    """Return the inodes of the sockets that listen on ``port``."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
