from __future__ import annotations

import json
import os

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder, append_line, read_lines, run_folders, tail, write_json, write_whole


def test_lines_come_back_in_order(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        append_line(path, {"step": step, "reward/mean": step / 4})
    assert [line["reward/mean"] for line in read_lines(path)] == [0.25, 0.5, 0.75]


def test_no_file_has_no_lines(tmp_path):
    assert list(read_lines(tmp_path / "nothing.jsonl")) == []


def test_a_line_cut_off_while_written_is_left_out_and_any_other_damage_is_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3, "rew')
    assert [line["step"] for line in read_lines(path)] == [1, 2]
    path.write_bytes(b'{"step": 1}\n{"step": 2, "rew\n{"step": 3}\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl:2 cannot be read"):
        list(read_lines(path))


def test_what_is_not_a_number_is_never_recorded(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        append_line(tmp_path / "metrics.jsonl", {"loss": float("nan")})


def test_a_whole_file_replaces_the_old_one_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "deep" / "table.md"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_writers_of_one_number_do_not_meet(tmp_path, monkeypatch):
    """As in two containers that share a home: each begins before the other has put its file in place."""
    path, others = tmp_path / "run.json", []
    sync = os.fsync

    def meanwhile(descriptor):
        sync(descriptor)
        if len(others) < 1:
            others.append(os.getpid())
            write_json(path, {"writer": 2})
            assert json.loads(path.read_text()) == {"writer": 2}

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_json(path, {"writer": 1})
    assert json.loads(path.read_text()) == {"writer": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_folders_with_a_run_are_found_by_name(tmp_path):
    for name in ("b", "a"):
        write_json(tmp_path / "runs" / name / "run.json", {"id": name})
    (tmp_path / "runs" / "stray").mkdir()
    assert [folder.name for folder in run_folders(tmp_path)] == ["a", "b"]


#: The least that a run.json holds.
RUN = {"id": "x", "family": "f", "spec": {"arm": {"name": "tepo"}, "seed": 1, "trainer": {"steps": 2}}}


def test_a_run_file_comes_back_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(RecordError, match="is missing"):
        folder.run()
    write_json(folder.run_file, RUN)
    assert folder.run() == RUN


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((content, "is damaged") for content in ("", "{", "\x00", "\xff\xfe", "[" * 100_000, "9" * 5000)),
        *((content, "not a mapping") for content in ("[]", "null", "3", '"text"')),
        ("{}", "it has no id"),
        (json.dumps(RUN | {"id": 3}), "its id is not what it must be"),
        (json.dumps(RUN | {"family": None}), "it has no family"),
        (json.dumps(RUN | {"spec": []}), "it has no spec.arm.name"),
        (json.dumps(RUN | {"spec": {}}), "it has no spec.arm.name"),
        (json.dumps(RUN | {"spec": RUN["spec"] | {"seed": "1"}}), "its spec.seed is not"),
        (json.dumps(RUN | {"spec": RUN["spec"] | {"seed": True}}), "its spec.seed is not"),
        (json.dumps(RUN | {"spec": RUN["spec"] | {"trainer": None}}), "it has no spec.trainer.steps"),
        (json.dumps(RUN | {"provenance": []}), "its provenance is not"),
        (json.dumps(RUN | {"provenance": {"commit": ["a"]}}), "its provenance.commit is not"),
        (json.dumps(RUN | {"earlier_provenance": {}}), "its earlier_provenance is not"),
    ],
    ids=range(21),
)
def test_a_damaged_run_file_is_told_with_the_mend(tmp_path, content, said):
    folder = RunFolder(tmp_path)
    folder.run_file.write_bytes(content.encode("latin-1"))
    with pytest.raises(RecordError, match=said) as told:
        folder.run()
    assert "the command that ran it writes it anew" in str(told.value)


def test_a_line_that_lacks_what_every_reader_needs_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    folder.events_file.write_text('{"event": "started"}\n{"step": 1}\n')
    folder.metrics_file.write_text('{"reward/mean": 1.0}\n')
    with pytest.raises(RecordError, match=r"events\.jsonl:2 cannot be read \(it has no 'event'\)"):
        folder.events()
    with pytest.raises(RecordError, match=r"metrics\.jsonl:1 cannot be read \(it has no 'step'\)"):
        folder.metrics()


#: Events as they are written, and a step's metrics: what was not finite stands as null.
EVENTS = (
    {"time": 1.5, "event": "started", "step": 0},
    {"time": 2, "event": "suspect", "step": 1, "why": "the sampler differs"},
    {"time": 3.0, "event": "validated", "step": 2, "value": 50.0, "seconds": 0.5, "cpu_seconds": 0.25},
    {"time": 3.5, "event": "checkpoint", "step": 2},
    {"time": 4.0, "event": "evaluated", "step": 2, "benchmarks": {"sum6": {"correct": 1, "graded": 4}}, "seconds": 1.0},
    {"time": 4.0, "event": "evaluated", "step": 2, "sampler_mismatch": None},
    {"time": 4.0, "event": "evaluated", "step": 2, "sampler_mismatch": 1e30},
    {"time": 5.0, "event": "stopped", "step": 2, "by": "asha"},
    {"time": 6.0, "event": "failed", "step": 2, "kind": "user", "error": "", "fingerprint": "0"},
    {"time": 7.0, "event": "collapsed", "step": 2, "rule": "reward/mean < 0.02"},
)
METRICS = {"step": 1, "reward/mean": 0.25, "actor/pg_loss": None, "rollout/tokens": 12, "time": 2.5}


def test_what_a_run_writes_of_itself_comes_back(tmp_path):
    folder = RunFolder(tmp_path)
    for event in EVENTS:
        append_line(folder.events_file, event)
    append_line(folder.metrics_file, METRICS)
    assert folder.events() == tail(folder.events_file) == list(EVENTS)
    assert folder.metrics() == tail(folder.metrics_file) == [METRICS]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"event": ["started"]}, "its 'event' is no text"),
        *(({"step": step}, "its 'step' is no count") for step in ("abc", [1], None, 1.5, True, -1, 10**30)),
        *(({"time": time}, "its 'time' is no number") for time in ("x", None, True, float("nan"), float("inf"))),
        *(({"event": event, "step": 1}, "it has no") for event in ("validated", "collapsed", "stopped", "failed")),
        ({"event": "collapsed", "rule": "x"}, "it has no 'step'"),
        ({"event": "failed", "kind": 3, "error": "x"}, "its 'kind' is no text"),
        ({"event": "validated", "step": 1, "value": "x"}, "its 'value' is no number"),
        ({"seconds": "x"}, "its 'seconds' is no number"),
        *(({"sampler_mismatch": wrong}, "its 'sampler_mismatch' is no number") for wrong in ("x", [1], float("nan"))),
        *(({"benchmarks": wrong}, "its 'benchmarks' are no counts") for wrong in ([1], {"a": "x"}, {"a": {}})),
    ],
)
def test_an_event_that_cannot_be_one_is_told_and_not_shown(tmp_path, change, said):
    folder = RunFolder(tmp_path)
    first = {"time": 1.0, "event": "started"}
    folder.events_file.write_text(json.dumps(first) + "\n" + json.dumps(first | change) + "\n")
    with pytest.raises(RecordError, match=rf"events\.jsonl:2 cannot be read \({said}.*\): remove that line"):
        folder.events()
    assert tail(folder.events_file) == [first]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(({"step": step}, "its 'step' is no count") for step in ("x", [1], 1.5, True, -1, 10**30)),
        *(
            ({"reward/mean": wrong}, "its 'reward/mean' is no number")
            for wrong in ("x", [1], {}, True, float("nan"), float("inf"), 10**400)
        ),
        *(({"time": wrong}, "its 'time' is no number") for wrong in ("x", None, float("inf"))),
    ],
)
def test_step_metrics_that_are_no_numbers_are_told_and_not_shown(tmp_path, change, said):
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_text(json.dumps(METRICS) + "\n" + json.dumps(METRICS | change) + "\n")
    with pytest.raises(RecordError, match=rf"metrics\.jsonl:2 cannot be read \({said}\): remove that line"):
        folder.metrics()
    assert tail(folder.metrics_file) == [METRICS]
