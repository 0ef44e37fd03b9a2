"""The bytes of a model's file: mapped, or read into memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Literal, TypeAlias

from hotseat.errors import ModelError

__all__ = ["LOAD_FORMATS", "FileBytes", "LoadFormat", "open_bytes"]

LoadFormat: TypeAlias = Literal["auto", "mmap", "read"]
LOAD_FORMATS = ("auto", "mmap", "read")


class FileBytes(mmap.mmap):
    """The bytes of ``path`` as they were when it was opened, as long as nobody writes into it."""

    path: Path
    status: os.stat_result  # of the moment when it was opened
    is_mapped: bool

    def check_unchanged(self) -> None:
        """Raise ``ModelError`` when a mapped file was written to since; one that was replaced is still the same.

        One that becomes shorter cannot be caught in time: what reads beyond its end is ended by SIGBUS.
        """
        if not self.is_mapped:
            return
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return
        before = self.status
        is_same = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
        if is_same and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise ModelError(
                f"{self.path} was written to while it was loaded "
                f"(it had {before.st_size} bytes and has {now.st_size}); "
                "load it again, and replace model files by renaming"
            )


def open_bytes(path: Path, load_format: LoadFormat, *, least: int, what: str) -> FileBytes:
    """Map ``path``, or read it as a whole.

    Raises:
        ModelError: it has fewer bytes than ``least``, or becomes shorter while it is read; ``what`` names its format.
    """
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if status.st_size < least:
            raise ModelError(f"{path}: {status.st_size} bytes are too few for a {what} file")
        if load_format != "read":
            data = FileBytes(file.fileno(), 0, access=mmap.ACCESS_READ)
        else:
            data = FileBytes(-1, status.st_size)  # anonymous memory: aligned, and given back when nothing refers to it
            begin = 0
            while count := file.readinto(memoryview(data)[begin:]):
                begin += count
            if begin != status.st_size:
                raise ModelError(f"{path} had {status.st_size} bytes, but ended after {begin} while it was read")
    data.path, data.status, data.is_mapped = path, status, load_format != "read"
    return data
