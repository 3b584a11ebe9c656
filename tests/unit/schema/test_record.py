from __future__ import annotations

import json

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.schema.record import RunFolder, append_line, read_lines, run_folders, write_json, write_whole


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
        (json.dumps(RUN | {"earlier_provenance": {}}), "its earlier_provenance is not"),
    ],
    ids=range(20),
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
