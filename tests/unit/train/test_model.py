"""What keeps a model from being loaded: the model itself, or the machine."""

from __future__ import annotations

import errno

import pytest
import torch
from transformers import AutoModelForCausalLM

from tepo_lab.errors import ModelError
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.train.model import load_model


@pytest.fixture
def load(monkeypatch):
    """Loads the embedded model while its weights cannot be read for this reason."""

    def attempt(error):
        def fail(*arguments, **settings):
            raise error

        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
        load_model(ModelSpec(name="nano", path="package:nano"), torch.device("cpu"))

    return attempt


@pytest.mark.parametrize(
    "error",
    [OSError(number, "said by the system") for number in (errno.ENOMEM, errno.EMFILE, errno.ESTALE, errno.EIO)]
    + [OSError("Cannot allocate memory (os error 12)")],
    ids=str,
)
def test_what_the_machine_lacks_is_not_laid_to_the_model(load, error):
    with pytest.raises(OSError) as raised:
        load(error)
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOENT, "No such file"), OSError(errno.EACCES, "Permission denied"), OSError("no weights in it")],
    ids=str,
)
def test_a_model_that_is_not_there_is_told_in_a_line(load, error):
    with pytest.raises(ModelError, match=r"^model.path=package:nano: cannot be loaded \("):
        load(error)
