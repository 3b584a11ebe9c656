"""How this process's memory is given back to the system."""

from __future__ import annotations

import ctypes
import platform

#: Parameters of glibc's mallopt (malloc.h), and what they are set to, in bytes.
M_TRIM_THRESHOLD, KEPT = -1, 256 * 2**20
M_MMAP_THRESHOLD, LARGEST = -3, 32 * 2**20


def keep_freed_memory() -> None:
    """Let the C library keep up to 256 MiB that tensors have freed for the next ones, where it is glibc.

    Left to itself it gives tensors of more than 128 KiB back to the system one by one, and every step has its pages
    mapped and cleared anew: on small models a twentieth of a step's CPU time.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)
