"""Failures as they are recorded, and how long a retry waits."""

from __future__ import annotations

import errno

import pytest

from tepo_lab.errors import DataError, is_machine_failure
from tepo_lab.execute.running.failures import (
    begin_attempt,
    fingerprint,
    log_error,
    machine_trouble,
    record_machine_failure,
    record_user_failure,
    retry_seconds,
    text_fingerprint,
)
from tepo_lab.records.events import Failed
from tepo_lab.records.history import RunHistory, State
from tepo_lab.tasks.hub_data import HubUnreachableError


def raised(number):
    try:
        raise ValueError(f"bad {number}")
    except ValueError as error:
        return error


def test_waits_grow_and_are_bounded():
    assert [retry_seconds(failures) for failures in (0, 1, 2, 3, 4, 9)] == [0, 2, 8, 32, 120, 120]


def test_attempts_are_counted_within_a_session_until_one_ends_by_itself(small_run):
    _, folder = small_run("tepo", "trainer.steps=1")
    assert [begin_attempt(folder, "one"), begin_attempt(folder, "one"), begin_attempt(folder, "two")] == [0, 1, 0]
    begin_attempt(folder, "two")
    folder.attempt_file.write_text("[1")
    assert begin_attempt(folder, "two") == 0
    record_user_failure(folder, [DataError("no")])
    assert not folder.attempt_file.exists()


def test_errors_of_one_kind_and_place_share_a_fingerprint():
    assert fingerprint(raised(1)) == fingerprint(raised(2)) != fingerprint(ValueError("bad 1"))
    assert text_fingerprint("process 17 at 0xfe died") == text_fingerprint("process 4 at 0x1a died")
    assert text_fingerprint("process 17 died") != text_fingerprint("process 17 hung")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            lambda folder: record_user_failure(folder, [DataError("no  data"), raised(1)]),
            ("user", "no data", "DataError"),
        ),
        (
            lambda folder: record_user_failure(folder, [raised(1)]),
            ("user", "ValueError: bad 1", "ValueError"),
        ),
        (
            lambda folder: record_machine_failure(folder, "Traceback\n  died\n\n"),
            ("machine", "died", "RuntimeError"),
        ),
    ],
)
def test_what_is_recorded(record, expected, small_run):
    _, folder = small_run("tepo", "trainer.steps=1")
    record(folder)
    history = RunHistory.read(folder)
    assert history.state is State.FAILED
    assert isinstance(history.outcome, Failed)
    assert (history.outcome.kind, history.outcome.error, history.outcome.error_type) == expected


@pytest.mark.parametrize("errors", [[], [MemoryError()], [DataError("x"), OSError(errno.ENOSPC, "full")]])
def test_a_failure_that_a_retry_may_help_is_not_recorded_as_the_users(errors, small_run):
    _, folder = small_run("tepo", "trainer.steps=1")
    assert not record_user_failure(folder, errors)
    assert RunHistory.read(folder).events == ()


def test_nothing_is_added_to_damaged_records(small_run):
    _, folder = small_run("tepo", "trainer.steps=1")
    folder.events_file.write_bytes(b"garbage\n{}\n")
    record_machine_failure(folder, "died")
    assert folder.events_file.read_bytes() == b"garbage\n{}\n"


def test_a_log_that_cannot_be_written_hides_no_error(small_run):
    _, folder = small_run("tepo", "trainer.steps=1")
    folder.log_file.mkdir()
    error = raised(1)
    log_error(folder, error)
    assert str(folder.log_file) in error.__notes__[0]


@pytest.mark.parametrize(
    ("error", "is_machine"),
    [(HubUnreachableError("x"), True), (DataError("x"), False), (OSError(errno.ENOSPC, "full"), True)],
)
def test_the_machines_failures_are_those_that_a_retry_may_help(error, is_machine):
    assert is_machine_failure(error) is is_machine


def test_a_full_disk_is_named_with_its_place():
    assert (machine_trouble(OSError(errno.ENOSPC, "full", "/x")) or "").startswith("/x: full; free space")
    assert machine_trouble(OSError(errno.ENOENT, "missing", "/x")) is None
