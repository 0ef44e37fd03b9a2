"""A file of lines that may become full: then it ends, and nothing else does."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import IO

__all__ = ["LineFile"]

logger = logging.getLogger(__name__)


class LineFile:
    """Write lines to ``path``. When one cannot be written, say so once and write no more.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = path.open("w", encoding="utf-8")

    def __enter__(self) -> LineFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(self, text: str) -> None:
        """Write ``text``, unless an earlier one could not be."""
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write what is left; idempotent."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)
        self._file = None

    def _give_up(self, error: OSError) -> None:
        logger.error("%s cannot be written to any more, the record ends here: %s", self._path, error.strerror)
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()  # tries once more to write what is left
        except OSError:
            pass
