from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError
from torch.distributed import DistBackendError

from tepo_lab.errors import DataError
from tepo_lab.execute.running.learners import bundle, is_lost_peer
from tepo_lab.schema.profile import Resources


def test_each_learner_takes_its_share_of_the_run():
    assert bundle(Resources(cpus=16, gpus=8, learners=8)) == {"CPU": 2.0, "GPU": 1.0}
    assert bundle(Resources(cpus=1, learners=2)) == {"CPU": 0.5}


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (ActorDiedError(), True),
        (DistBackendError("NCCL communicator was aborted"), True),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("shapes do not match"), False),
        (DataError("no problem left"), False),
    ],
)
def test_a_worker_that_lost_another_is_told_from_one_that_failed(error, is_lost):
    assert is_lost_peer(error) is is_lost
