"""A sweep over a Ray cluster of two nodes, one of which goes away while it works."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tepo_lab.records.events import Complete
from tepo_lab.records.history import RunHistory
from tests.integration.faults import Bench, owner, wait_for


@pytest.fixture
def cluster():
    """A head and a worker, each a raylet of its own with one CPU; what one machine has of two."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_sweep_spreads_over_two_nodes_and_goes_on_when_one_dies(cluster, tmp_path):
    worker = cluster.add_node(num_cpus=1)
    raylets = {
        name: node.all_processes["raylet"][0].process.pid
        for name, node in (("head", cluster.head_node), ("worker", worker))
    }
    bench = Bench(tmp_path / "bench", steps=60)
    home = tmp_path / "home"
    driver = bench.start(home, "--address", cluster.address)
    folders = bench.folders(home)

    def at_work() -> dict[int, Path]:
        """By raylet, the run with a checkpoint that its process owns."""
        owners = {folder.path: owner(folder) for folder in folders if folder.checkpoint_steps()}
        return {psutil.Process(pid).ppid(): path for path, pid in owners.items() if pid is not None}

    assert wait_for(lambda: set(raylets.values()) <= set(at_work()), driver), driver.output
    lost = at_work()[raylets["worker"]]
    cluster.remove_node(worker, allow_graceful=False)
    killed = time.time()
    assert driver.wait() == 0, driver.output
    histories = {folder.path: RunHistory.read(folder) for folder in folders}
    assert all(isinstance(history.outcome, Complete) for history in histories.values())
    (again,) = (event for event in histories[lost].events if event.event == "resumed")
    assert again.time > killed
    assert again.step >= 4
    assert bench.difference(home, bench.run_undisturbed(tmp_path / "undisturbed")) == ""
