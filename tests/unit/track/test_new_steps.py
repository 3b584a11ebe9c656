"""Of a run that goes on, the mirror reads and keeps the new steps alone."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from synthetic_runs import START, Lab

from tepo_lab.errors import RecordError
from tepo_lab.records.files import append_line, write_whole
from tepo_lab.track.state import run_state
from tepo_lab.track.steps import NewLines, Steps


def steps(lines: NewLines) -> tuple[list[int], bool]:
    found, is_whole = lines.read()
    return [line["step"] for line in found], is_whole


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = NewLines(path)
    assert steps(lines) == ([], True)
    append_line(path, {"step": 1})
    assert steps(lines) == ([1], True)
    assert steps(lines) == ([], False)
    append_line(path, {"step": 2})
    append_line(path, {"step": 3})
    assert steps(lines) == ([2, 3], False)


def test_a_line_that_is_not_whole_yet_is_read_when_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "rew')
    lines = NewLines(path)
    assert steps(lines) == ([1], True)
    path.write_bytes(b'{"step": 1}\n{"step": 2, "rew\n')
    assert steps(lines) == ([], False)
    # The next writer drops what was left unfinished.
    append_line(path, {"step": 2})
    assert steps(lines) == ([2], False)


def test_a_file_cut_back_or_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = NewLines(path)
    for step in (1, 2, 3):
        append_line(path, {"step": step, "time": 0.5 * step})
    assert steps(lines) == ([1, 2, 3], True)
    write_whole(path, b'{"step":1,"time":0.5}\n{"step":2,"time":9.0}\n{"step":3,"time":1.5}\n')
    assert steps(lines) == ([1, 2, 3], True)
    # In place, and as long as before: the same file with another end.
    path.write_bytes(path.read_bytes().replace(b'"time":1.5', b'"time":7.5'))
    assert steps(lines) == ([1, 2, 3], True)
    path.unlink()
    assert steps(lines) == ([], True)


def test_a_damaged_line_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = NewLines(path)
    for step in (1, 2):
        append_line(path, {"step": step})
    lines.read()
    with path.open("a") as stream:
        stream.write('{"step": 3\n{"step": 4}\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl:3 cannot be read"):
        lines.read()


def test_a_digest_does_not_tell_in_how_many_calls_the_steps_were_read(lab: Lab) -> None:
    folder = lab.run("tepo")
    bit_by_bit = Steps(folder)
    for step in (1, 2, 3):
        lab.step(folder, step)
        bit_by_bit.read()
    at_once = Steps(folder)
    at_once.read()
    assert (bit_by_bit.digest, bit_by_bit.last_time) == (at_once.digest, START + 30.125)
    assert run_state(folder, "s", steps=bit_by_bit).digest == run_state(folder, "s").digest


def test_an_evaluation_counted_anew_replaces_the_run_with_all_its_steps(lab: Lab) -> None:
    folder, mirror = lab.run("tepo"), lab.mirror()
    for step in (1, 2):
        lab.step(folder, step)
        mirror.update([folder])
    lab.evaluated(folder, 2)
    mirror.update([folder])
    before = lab.shown()[folder.name]
    lab.evaluated(folder, 2, correct=4)
    lab.step(folder, 3)
    mirror.update([folder])
    after = lab.shown()[folder.name]
    assert after["id"] != before["id"]
    assert after["values"] == run_state(folder, "panel-e").values
    assert after["values"]["score/k3", 2][0] == 100.0


def test_what_an_update_takes_of_memory_does_not_grow_with_the_run(lab: Lab) -> None:
    folder, mirror = lab.run("tepo"), lab.mirror()
    metrics = {f"metric/{number}": float(number) for number in range(40)}

    def peak(until: int) -> int:
        """Bytes that the last of the updates to that step takes at most."""
        lines = [f'{{"step": {step}, "time": {START + step}}}\n' for step in range(len(folder.metrics()) + 1, until)]
        with folder.metrics_file.open("a") as stream:
            stream.writelines(lines)
        mirror.update([folder])
        lab.step(folder, until, **metrics)
        tracemalloc.start()
        mirror.update([folder])
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    first = peak(20)
    # As many steps again as would take 10 MB if all were read.
    assert peak(20_000) < first + 500_000
