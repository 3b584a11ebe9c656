"""What fits a cluster, and what is refused, without Ray."""

from __future__ import annotations

import pytest

from tepo_lab.errors import ResourceError
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.cluster import Cluster, check_fits, check_reachable, check_supported
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.schema.profile import Resources

ONE_NODE = Cluster(((2.0, 0.0),))
TWO_GPU_NODES = Cluster(((32.0, 4.0), (32.0, 4.0)))


@pytest.mark.parametrize(
    ("cluster", "resources", "slots"),
    [
        (ONE_NODE, {"cpus": 1}, 2),
        (ONE_NODE, {"cpus": 2}, 1),
        (ONE_NODE, {"cpus": 2, "learners": 2}, 1),
        (ONE_NODE, {"cpus": 1, "learners": 2}, 2),
        (ONE_NODE, {"cpus": 0.1}, 20),
        (ONE_NODE, {"cpus": 1, "gpus": 1}, 0),
        (TWO_GPU_NODES, {"cpus": 16, "gpus": 8, "learners": 8}, 1),
        (TWO_GPU_NODES, {"cpus": 16, "gpus": 4, "learners": 4}, 2),
        # One process does not span nodes, though both together have enough.
        (TWO_GPU_NODES, {"cpus": 16, "gpus": 8}, 0),
        (TWO_GPU_NODES, {"cpus": 16, "gpus": 6, "learners": 2}, 1),
        (TWO_GPU_NODES, {"cpus": 16, "gpus": 6, "learners": 3}, 1),
    ],
)
def test_how_many_runs_fit_at_once(cluster, resources, slots):
    assert cluster.slots(Resources(**resources)) == slots


@pytest.mark.parametrize(
    ("cluster", "overrides", "numbers"),
    [
        (ONE_NODE, ("resources.cpus=3",), ("3 CPUs and 0 GPUs", "2 and 0")),
        (ONE_NODE, ("resources.cpus=16", "resources.learners=2"), ("16 CPUs", "2 learners (8 and 0 each)", "2 and 0")),
        (ONE_NODE, ("resources.learners=3",), ("3 learners", "resources.learners=2")),
        (
            TWO_GPU_NODES,
            ("resources.cpus=16", "resources.gpus=16", "resources.learners=8"),
            ("16 GPUs", "8 learners (2 and 2 each)", "64 and 8 on 2 nodes", "room for 4"),
        ),
    ],
)
def test_a_run_that_does_not_fit_is_refused_with_the_numbers(cluster, overrides, numbers, tmp_path):
    run = planned(compose_run("tepo", "nano", overrides, seed=1))
    with pytest.raises(ResourceError) as refused:
        check_fits(cluster, entry(tmp_path, run))
    assert all(number in str(refused.value) for number in numbers)


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (("resources.gpus=4", "resources.learners=8"), "resources.gpus=8 or resources.learners=4"),
        (("resources.gpus=0.5", "resources.learners=2"), "resources.gpus=2 or resources.learners=1"),
        (("resources.placement=separate",), "resources.placement=colocated"),
        (("resources.gpus=8", "resources.learners=8"), None),
        (("resources.learners=2",), None),
    ],
)
def test_learners_have_a_gpu_each_or_none(overrides, fix, tmp_path):
    asked = entry(tmp_path, planned(compose_run("tepo", "nano", overrides, seed=1)))
    if fix is None:
        check_supported(asked)
    else:
        with pytest.raises(ResourceError, match=fix):
            check_supported(asked)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "ray://127.0.0.1:1"])
def test_a_cluster_that_does_not_answer(address):
    with pytest.raises(ResourceError, match=f"no Ray cluster at {address} "):
        check_reachable(address)


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port"])
def test_an_address_that_is_none(address):
    with pytest.raises(ResourceError, match="give host:port"):
        check_reachable(address)
