"""Runs a function in several processes with a gloo process group between them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing


def in_processes(count: int, work: Callable[..., None], *args: Any) -> None:
    """Call `work(process_group, *args)` in `count` processes; what one of them raises is raised here.

    `work` is a function of a test module, and leaves its results in files.
    """
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(_process, (count, port, list(sys.path), work, args), count)


def _process(rank: int, count: int, port: int, path: list[str], work: Callable[..., None], args: tuple[Any]) -> None:
    sys.path[:] = path
    from tepo_lab.train.distributed.process_group import TorchProcessGroup

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=count)
    try:
        work(TorchProcessGroup(), *args)
    finally:
        dist.destroy_process_group()
