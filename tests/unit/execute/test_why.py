"""Failures of the two kinds: how they are told apart, recorded, grouped and explained."""

from __future__ import annotations

import errno
import io

import pytest
from rich.console import Console
from safetensors import SafetensorError

from tepo_lab.errors import MachineError, ModelError, ResourceError, is_machine_failure
from tepo_lab.execute.running.failures import (
    begin_attempt,
    end_attempt,
    fingerprint,
    log_error,
    machine_trouble,
    record_machine_failure,
    record_user_failure,
    retry_seconds,
    text_fingerprint,
)
from tepo_lab.execute.showing.why import causes, causes_text, log_tail
from tepo_lab.records.files import RunFolder, append_line
from tepo_lab.records.lock import RunLock


@pytest.fixture
def make(tmp_path):
    """Run folders that have begun."""

    def begun(name):
        folder = RunFolder(tmp_path / "runs" / name)
        folder.path.mkdir(parents=True)
        append_line(folder.events_file, {"time": 1.0, "event": "started", "step": 0})
        return folder

    return begun


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class AcceleratorError(RuntimeError):
    """As torch names it."""


def test_the_machines_failures_are_told_from_the_users():
    for number in (errno.ENOSPC, errno.EIO, errno.ENOMEM, errno.EDQUOT, errno.EMFILE, errno.EAGAIN, errno.EROFS):
        assert is_machine_failure(OSError(number, "said by the system"))
    for number in (errno.ETIMEDOUT, errno.ECONNRESET, errno.EPIPE, errno.ESTALE):
        assert is_machine_failure(OSError(number, "said by the system"))
    for number in (errno.EACCES, errno.ENOTDIR, errno.ELOOP):
        assert not is_machine_failure(OSError(number, "out of memory, says the name of a file"))
    assert is_machine_failure(MemoryError())
    assert is_machine_failure(OutOfMemoryError("CUDA out of memory"))
    assert is_machine_failure(MachineError("vLLM cannot start (Free memory on device 0 ...)"))
    assert not is_machine_failure(ResourceError("a grading worker cannot start (no module): install math-verify."))
    for said in (
        "[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0",
        "PytorchStreamWriter failed writing file data/0: file write failed",
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 8000000000000 bytes. Error code 12 (Cannot allocate memory)",
        "CUDA driver error: out of memory",
        "CUDA Error: out of memory at cumem_allocator.cpp:62",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "can't start new thread",
    ):
        assert is_machine_failure(RuntimeError(said))
    assert is_machine_failure(
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    )
    assert is_machine_failure(Exception("Cannot allocate memory (os error 12)"))
    assert is_machine_failure(OSError("Cannot allocate memory (os error 12)"))
    assert not is_machine_failure(Exception("No such file or directory (os error 2)"))
    assert not is_machine_failure(OSError("Error while reading the header"))
    assert is_machine_failure(AcceleratorError("CUDA error: uncorrectable ECC error encountered"))
    assert not is_machine_failure(AcceleratorError("CUDA error: device-side assert triggered"))
    assert not is_machine_failure(SafetensorError("Error while deserializing header: header too small"))
    assert not is_machine_failure(RuntimeError("shapes cannot be multiplied (2x3 and 2x3)"))
    assert not is_machine_failure(ModelError("its README says: no space left on device"))
    for error in (OSError(errno.ENOENT, "no such file"), ModelError("no model"), ValueError("nan"), KeyError("x")):
        assert not is_machine_failure(error)


def test_what_the_machine_lacks_is_said_in_a_line():
    full = OSError(errno.ENOSPC, "No space left on device", "runs/x/metrics.jsonl")
    assert str(machine_trouble(full)).startswith("runs/x/metrics.jsonl: No space left on device; free space (tepo-lab")
    in_words = machine_trouble(OSError("Cannot allocate memory (os error 12)"))
    assert str(in_words).startswith("Cannot allocate memory (os error 12); mend the machine, then give the same")
    assert machine_trouble(OSError(errno.ENOENT, "No such file", "x.yaml")) is None


def test_waits_grow_and_end_at_a_limit():
    assert [retry_seconds(failures) for failures in range(6)] == [0, 2, 8, 32, 120, 120]


def test_attempts_are_counted_within_a_session_until_one_ends_by_itself(make):
    folder = make("one")
    assert [begin_attempt(folder, "session") for _ in range(3)] == [0, 1, 2]
    assert begin_attempt(folder, "another") == 0
    end_attempt(folder)
    assert begin_attempt(folder, "another") == 0
    folder.attempt_file.write_text("cut o")
    assert begin_attempt(folder, "another") == 0


def test_fingerprints_are_of_the_cause_not_of_its_numbers():
    assert fingerprint(raised(ValueError("a"))) == fingerprint(raised(ValueError("b")))
    assert fingerprint(raised(ValueError("a"))) != fingerprint(raised(KeyError("a")))
    died = "The actor died: pid 123, address 0x7f3a, node 9d597de5"
    assert text_fingerprint(died) == text_fingerprint("The actor died: pid 9, address 0xff, node 0123abcd")
    assert text_fingerprint(died) != text_fingerprint("No space left")


def test_runs_that_failed_alike_are_one_cause_with_its_mend(make):
    runs = [make(name) for name in ("one", "two", "three", "four", "five")]
    for folder in runs[:2]:
        error = raised(ModelError("model.path=x: cannot be loaded (no such folder)."))
        log_error(folder, error)
        record_user_failure(folder, error)
    record_user_failure(runs[2], raised(ZeroDivisionError("division by zero")))
    record_machine_failure(runs[3], raised(OSError(errno.ENOSPC, "No space left on device")))
    found = causes(runs)
    assert [(each.kind, each.runs) for each in found] == [
        ("user", ["one", "two"]),
        ("user", ["three"]),
        ("machine", ["four"]),
        ("stopped", ["five"]),
    ]
    record_machine_failure(runs[4], raised(MachineError("vLLM cannot start (3 of 48 GiB): free the GPU's memory.")))
    assert next(each for each in causes(runs[4:])).mend == "as the error says; then give the same command again."
    assert found[0].error == "model.path=x: cannot be loaded (no such folder)."
    assert found[0].mend.startswith("as the error says")
    assert found[0].log[-1] == "tepo_lab.errors.ModelError: model.path=x: cannot be loaded (no such folder)."
    assert str(runs[2].log_file) in found[1].mend
    assert "tepo-lab clean" in found[2].mend
    assert "goes on" in found[3].mend
    stream = io.StringIO()
    Console(file=stream, width=200).print(causes_text(found))
    for said in ("2 runs, user [", "runs: one, two", "mend: free space", "trial.log of two, its end:"):
        assert said in stream.getvalue()


def test_runs_that_go_on_or_are_done_have_no_cause(make):
    done, going = make("done"), make("going")
    append_line(done.events_file, {"time": 2.0, "event": "failed", "step": 0, "kind": "machine", "error": "x"})
    append_line(done.events_file, {"time": 3.0, "event": "complete", "step": 4})
    with RunLock(going):
        assert causes([done, going]) == []
    assert [each.kind for each in causes([done, going])] == ["stopped"]
    stream = io.StringIO()
    Console(file=stream).print(causes_text([]))
    assert stream.getvalue().strip() == "No run has failed."


def test_a_log_cannot_steer_the_terminal(make):
    folder = make("one")
    folder.log_file.write_bytes(b"first\n\x1b[31mred\x1b[0m \x1b]0;title\x07bell\xff\n")
    assert log_tail(folder) == ["first", "red ]0;titlebell\ufffd"]
    folder.log_file.write_text("".join(f"line {number}\n" for number in range(100)))
    assert log_tail(folder, 2) == ["line 98", "line 99"]


def test_an_error_cannot_steer_the_terminal(make):
    folder = make("one")
    said = {"kind": "user", "error": "\x1b[2Jgone \x1b]0;title\x07", "fingerprint": "\x1b[31mred"}
    append_line(folder.events_file, {"time": 2.0, "event": "failed", "step": 0, **said})
    stream = io.StringIO()
    Console(file=stream).print(causes_text(causes([folder])))
    assert "1 run, user [red]: gone ]0;title" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_log_that_cannot_be_written_does_not_hide_the_error(make):
    folder = make("one")
    folder.log_file.mkdir()
    error = raised(OSError(errno.ENOSPC, "No space left on device"))
    log_error(folder, error)
    assert "could not be written" in error.__notes__[0]
