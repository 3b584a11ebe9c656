"""The C library's allocator: how much freed memory it keeps for the next tensors."""

from __future__ import annotations

import ctypes
import platform

#: Parameters of glibc's mallopt (malloc.h), and what they are set to, in bytes.
M_TRIM_THRESHOLD, KEPT = -1, 256 * 2**20
M_MMAP_THRESHOLD, LARGEST = -3, 32 * 2**20


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of freed tensor memory for the next tensors; does nothing for another C library.

    By default it returns tensors of more than 128 KiB to the system one by one, and every step maps and clears their
    pages again: a twentieth of the CPU time of a small model's step.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)
