"""A run's step metrics read as they are written: of a long run, only the steps that are new."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from tepo_lab.records.files import RunFolder, lines_of, parsed_line


class NewLines:
    """Reads a JSON-lines file that grows, each time what was added since. Of what was read only the end is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = self._end = self._count = 0
        self._last = b""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The lines added since the last call, and whether they are all of the file's, from the first on.

        They are at the first call, and where the file is not the one that was read before: cut back, or written anew.
        Raises `RecordError` as `tepo_lab.records.files.read_lines` does.
        """
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            self._inode = self._end = self._count = 0
            return [], True
        with stream:
            is_whole = not self._goes_on(stream)
            if is_whole:
                self._inode, self._end, self._count = os.fstat(stream.fileno()).st_ino, 0, 0
            stream.seek(self._end)
            text = _without_cut_line(stream.read())
        lines = list(lines_of(text, self.path, before=self._count))
        if text:
            self._end += len(text)
            self._count += text.count(b"\n")
            self._last = text[text.rfind(b"\n", 0, -1) + 1 :]
        return lines, is_whole

    def _goes_on(self, stream: BinaryIO) -> bool:
        """Whether the file has what was read last at the place where it was read."""
        if self._end == 0 or os.fstat(stream.fileno()).st_ino != self._inode:
            return False
        stream.seek(self._end - len(self._last))
        return stream.read(len(self._last)) == self._last


def _without_cut_line(text: bytes) -> bytes:
    """The text up to the last line that was written in full: one that was not is dropped by the next writer."""
    whole = text[: text.rfind(b"\n") + 1]
    start = whole.rfind(b"\n", 0, -1) + 1
    return whole if not whole or parsed_line(whole[start:]) is not None else whole[:start]


class Steps:
    """A run's step metrics for the mirror: what is new of them, and a digest of all."""

    def __init__(self, folder: RunFolder) -> None:
        self._lines = NewLines(folder.metrics_file)
        self._digest = hashlib.sha256()
        #: When the last step ended, Unix seconds; 0 before the first.
        self.last_time = 0.0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """As `NewLines.read`."""
        lines, is_whole = self._lines.read()
        if is_whole:
            self._digest, self.last_time = hashlib.sha256(), 0.0
        for line in lines:
            self._digest.update(json.dumps(line, sort_keys=True).encode())
            self.last_time = max(self.last_time, float(line["time"]))
        return lines, is_whole

    @property
    def digest(self) -> str:
        """Equal for equal steps, however many calls they were read in."""
        return self._digest.hexdigest()
