"""What a cluster has, and which runs are refused before anything is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from tepo_lab.errors import ResourceError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.running.learners import bundle
from tepo_lab.schema.profile import Resources

#: Seconds in which a cluster's head must answer.
REACH_SECONDS = 5.0


@dataclass(frozen=True)
class Cluster:
    """What Ray has for us: CPUs and GPUs of each of its nodes."""

    nodes: tuple[tuple[float, float], ...]

    @property
    def cpus(self) -> float:
        """CPUs of all nodes."""
        return sum(cpus for cpus, _ in self.nodes)

    @property
    def gpus(self) -> float:
        """GPUs of all nodes."""
        return sum(gpus for _, gpus in self.nodes)

    def room_for(self, share: dict[str, float]) -> int:
        """How many processes that take `share` (CPU, GPU) each can run at once. A process does not span nodes."""
        asked = share.get("CPU", 0.0), share.get("GPU", 0.0)
        return sum(
            min(int(has / wants + 1e-9) for has, wants in zip(node, asked, strict=True) if wants) for node in self.nodes
        )

    def slots(self, resources: Resources) -> int:
        """How many runs that ask for `resources` can go at once; 0 when one does not fit."""
        return self.room_for(bundle(resources)) // resources.learners


def check_reachable(address: str) -> None:
    """Raise `ResourceError` when nothing answers at a cluster's host:port. Ray alone would try for over a minute."""
    place = address.removeprefix("ray://")
    host, _, port = place.rpartition(":")
    if place in ("auto", "local"):
        return
    if not host or not port.isdigit():
        raise ResourceError(f"--address {address}: give host:port of the cluster's head, or auto for one started here.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ResourceError(
            f"no Ray cluster at {address} ({reason}); start one there with ray start --head, or leave --address out."
        ) from None


def check_place(address: str | None, pending: Iterable[Entry]) -> None:
    """Raise `ResourceError` where Ray would be started, or joined, in vain.

    Nothing answers at `address`; or, without one, a run asks for more than this machine has.
    """
    if address is not None:
        check_reachable(address)
        return
    for entry in pending:
        gpus = 0.0
        # To count GPUs takes seconds.
        if entry.planned.spec.resources.gpus:
            from torch.cuda import device_count

            gpus = float(device_count())
        check_fits(Cluster(((float(os.cpu_count() or 1), gpus),)), entry)


def check_fits(cluster: Cluster, entry: Entry) -> None:
    """Raise `ResourceError`, with the numbers, for a run that asks for more than the cluster has.

    Learners without GPUs take a core each, however small the share that they ask for: each is a process that computes.
    """
    asked = entry.planned.spec.resources
    if not asked.gpus and asked.learners > cluster.cpus:
        raise ResourceError(
            f"run {entry.folder.name}: {asked.learners} learners without GPUs take a core each, and there are "
            f"{cluster.cpus:g}; set resources.learners={max(1, int(cluster.cpus))} or fewer."
        )
    if cluster.slots(asked):
        return
    share, nodes = bundle(asked), len(cluster.nodes)
    learners = f" for {asked.learners} learners ({share.get('CPU', 0):g} and {share.get('GPU', 0):g} each)"
    raise ResourceError(
        f"run {entry.folder.name} asks for {asked.cpus:g} CPUs and {asked.gpus:g} GPUs"
        f"{learners if asked.learners > 1 else ''}, there are {cluster.cpus:g} and {cluster.gpus:g}"
        f"{f' on {nodes} nodes, with room for {cluster.room_for(share)} such processes' if nodes > 1 else ''}; "
        "set resources.cpus or resources.gpus, join a cluster with --address, or choose profile=nano."
    )


def check_supported(entry: Entry) -> None:
    """Raise `ResourceError` for a run that cannot be carried out here, though it can be planned."""
    if entry.planned.spec.rollout.engine == "vllm" and find_spec("vllm") is None:
        raise ResourceError(
            f"run {entry.folder.name}: rollout.engine=vllm and vLLM is not installed; pip install 'tepo-lab[vllm]' "
            "(in a checkout: pip install -e '.[vllm]'), or "
            "set rollout.engine=transformers to sample with the trainer's own model (slower)."
        )
    check_learners(entry)


def check_learners(entry: Entry) -> None:
    """Raise `ResourceError` for a run whose learners and engines cannot be placed so on any cluster."""
    asked = entry.planned.spec.resources
    if asked.learners > 1 and asked.gpus not in (0, asked.learners):
        raise ResourceError(
            f"run {entry.folder.name}: {asked.learners} learners take one GPU each, and resources.gpus is "
            f"{asked.gpus:g}; set resources.gpus={asked.learners} or resources.learners={max(1, int(asked.gpus))}."
        )
    if asked.placement == "separate":
        raise ResourceError(
            f"run {entry.folder.name}: engines share the learners' GPUs; set resources.placement=colocated."
        )
