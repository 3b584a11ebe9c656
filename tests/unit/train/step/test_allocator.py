from __future__ import annotations

import platform
import resource

import pytest
import torch

from tepo_lab.train.step.allocator import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory of another C library is left to it")
def test_freed_tensors_are_not_mapped_anew():
    keep_freed_memory()

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.zeros(2**20)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    # Each tensor has 1,024 pages.
    assert faults() < 1024
