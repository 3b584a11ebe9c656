"""Files that --out names."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tepo_lab.errors import ConfigError

#: Errors of a full or broken disk: a file of another name would not help.
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


def check_out(path: Path) -> None:
    """Raises `ConfigError` unless a file may be written there, before anything is worked out for it."""
    folder = path.parent
    if os.path.isdir(path):
        raise ConfigError(f"--out {path}: this is a folder; name a file in it.")
    if not os.path.isdir(folder):
        raise ConfigError(f"--out {path}: there is no folder {folder}; make it, or name another.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {path}: {folder} cannot be written; name another folder.")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises `ConfigError` where the place of a file is at fault; errors of a full or broken disk, or of other files,
    stay what they are."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_THE_DISK or Path(str(error.filename)) not in (path, *path.parents):
            raise
        raise ConfigError(f"{path} cannot be written ({error.strerror}); name another file with --out.") from None
