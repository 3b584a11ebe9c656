"""What keeps a data file from being read: the file itself, or the machine."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tepo_lab.errors import DataError
from tepo_lab.schema.profile import DatasetData
from tepo_lab.tasks.data_files import local_rows

MACHINE = [OSError(number, "of the system") for number in (errno.ENOMEM, errno.EMFILE, errno.ESTALE, errno.EIO)]


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Reads a file of this ending, which cannot be opened for this reason."""

    def attempt(suffix, error):
        def fail(*arguments, **settings):
            raise error

        path = tmp_path / f"rows{suffix}"
        path.touch()
        monkeypatch.setattr(pq, "read_table", fail)
        monkeypatch.setattr(Path, "open", fail)
        return local_rows(DatasetData(kind="dataset", path=str(path)))

    return attempt


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("error", MACHINE, ids=str)
def test_a_fault_of_the_machine_is_not_blamed_on_the_data(read, suffix, error):
    with pytest.raises(OSError) as raised:
        read(suffix, error)
    assert raised.value is error


def test_memory_that_runs_out_within_arrow_is_the_machines(read):
    with pytest.raises(pa.ArrowMemoryError):
        read(".parquet", pa.ArrowMemoryError("malloc of size 8000000000000 failed"))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), OSError("bad header")], ids=str)
def test_a_file_that_cannot_be_read_is_an_error_of_one_line(read, suffix, error):
    with pytest.raises(DataError, match="cannot be read"):
        read(suffix, error)
