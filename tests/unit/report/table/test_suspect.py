"""Complete evaluations whose numbers may not say what they seem to."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from synthetic_home import SUITE, SyntheticHome, columns_of
from synthetic_steps import write_steps

from tepo_lab.records.files import append_line
from tepo_lab.report.render.document import panels
from tepo_lab.report.render.formats import render
from tepo_lab.report.table.rows import Row

RIGHT = {"greedy": [1, 1, 0, 0, 0, 0], "sampled": [4, 1, 0]}


def row_of(home: SyntheticHome, columns: dict[str, Any], **options: Any) -> Row:
    home.want("plain", (1,))
    home.run("plain", 1, columns=columns, **options)
    (row,) = home.table().rows
    return row


@pytest.mark.parametrize(("right", "words"), [(0, "0 %"), (1, "100 %")])
def test_nothing_right_or_nothing_wrong(home: SyntheticHome, right: int, words: str) -> None:
    columns = columns_of(SUITE, RIGHT)
    row = row_of(home, columns | {"correct": [right] * 18})
    assert row.suspect == (f"seed 1: {words} on every benchmark",)
    assert row.outcome == "complete"
    home.want("other", (1,))
    home.run("other", 1, columns=columns)
    # A suspect row is never the best.
    table = home.table()
    assert "suspect" in render(table, "md")
    assert not any(panel.best for panel in panels(table))
    assert table.to_dict()["rows"][0]["suspect"] == list(row.suspect)
    assert table.to_dict()["rows"][1]["suspect"] == []


@pytest.mark.parametrize(
    ("column", "value", "held", "words"),
    [
        ("truncated", True, False, "of generations ended by the length limit"),
        ("extracted", None, "2", "of generations without an answer"),
    ],
)
def test_shares_above_the_limit(home: SyntheticHome, column: str, value: Any, held: Any, words: str) -> None:
    columns = columns_of(SUITE, RIGHT)
    # 4 of 18 are below a quarter, 5 are above it.
    assert row_of(home, columns | {column: [value] * 4 + [held] * 14}).suspect == ()
    row = row_of(home, columns | {column: [value] * 5 + [held] * 13})
    assert row.suspect == (f"seed 1: 27.8 % {words} (limit 25 %)",)


def test_answers_that_could_not_be_compared_in_time_count_as_none(home: SyntheticHome) -> None:
    columns = columns_of(SUITE, RIGHT)
    for timeouts, unread in ((4, 0), (0, 4), (2, 2)):
        late = {"how": ["timeout"] * timeouts + ["exact"] * (18 - timeouts)}
        none = {"extracted": ["2"] * (18 - unread) + [None] * unread}
        assert row_of(home, columns | late | none).suspect == ()
    said = ("seed 1: 27.8 % of generations without an answer that could be compared in time (limit 25 %)",)
    for timeouts, unread in ((5, 0), (1, 4)):
        late = {"how": ["timeout"] * timeouts + ["exact"] * (18 - timeouts)}
        none = {"extracted": ["2"] * (18 - unread) + [None] * unread}
        assert row_of(home, columns | late | none).suspect == said


def test_an_evaluation_that_does_not_say_how_it_was_graded(home: SyntheticHome) -> None:
    columns = columns_of(SUITE, RIGHT)
    older = {name: values for name, values in columns.items() if name != "how"}
    assert row_of(home, older).suspect == ()
    folder = home.run("plain", 1, columns=columns)
    path = folder.generations(20)
    table = pyarrow.table({**columns, "how": ["no such way"] * 18})
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(table, path, write_page_checksum=True, **plain)
    path.write_bytes(path.read_bytes().replace(b"no such way", b"no such wax", 1))
    (row,) = home.table().rows
    assert row.outcome == "complete"
    assert row.average.percent == pytest.approx(100 * 7 / 18)
    (reason,) = row.suspect
    assert reason.startswith("seed 1: how its answers were graded cannot be read (")


def test_a_sampler_that_differs_from_the_trainer(home: SyntheticHome) -> None:
    columns = columns_of(SUITE, RIGHT)
    home.want("plain", (1,))
    folder = home.run("plain", 1, columns=columns, rollout={"max_sampler_mismatch": 0.01})
    for step in range(1, 21):
        # A step that learned from nothing has none.
        known = {} if step > 3 else {"rollout/sampler_mismatch_mean": (0.001, 0.02, 0.03)[step - 1]}
        append_line(folder.metrics_file, {"step": step, **known})
    (row,) = home.table().rows
    assert row.suspect == (
        "seed 1: sampler and trainer differ by 0.03 nats a token at step 3 (limit 0.01, passed at 2 of 3 steps)",
    )
    write_steps(home.run("plain", 1, columns=columns, rollout={"max_sampler_mismatch": None}), 1)
    assert home.table().rows[0].suspect == ()


def test_a_sampler_whose_log_probabilities_are_not_finite(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, columns=columns_of(SUITE, RIGHT), rollout={"max_sampler_mismatch": 0.01})
    for step in range(1, 21):
        append_line(folder.metrics_file, {"step": step, "rollout/sampler_mismatch_mean": None if step == 7 else 0.02})
    assert home.table().rows[0].suspect == (
        "seed 1: the sampler's log-probabilities are not finite at step 7 (limit 0.01, passed at 20 of 20 steps)",
    )


@pytest.mark.parametrize(
    ("mismatch", "said"),
    [
        (0.01, ()),
        (0.02, ("seed 1: sampler and trainer differ by 0.02 nats a token in the evaluation (limit 0.01)",)),
        (None, ("seed 1: the sampler's log-probabilities are not finite in the evaluation (limit 0.01)",)),
    ],
)
def test_an_evaluation_that_was_not_sampled_with_the_trainers_weights(
    home: SyntheticHome, mismatch: float | None, said: tuple[str, ...]
) -> None:
    home.want("plain", (1,))
    tallies = {"greedy": {"correct": 2, "graded": 6}, "sampled": {"correct": 5, "graded": 12}}
    event = {"event": "evaluated", "step": 20, "benchmarks": tallies}
    # Made once before, by a sampler gone astray; graded again afterwards, which says nothing of the sampler.
    events = ({**event, "sampler_mismatch": 9.0}, {**event, "sampler_mismatch": mismatch}, event)
    others = ({"event": "evaluated", "step": 10, "benchmarks": tallies, "sampler_mismatch": 9.0},)
    folder = home.run(
        "plain",
        1,
        columns=columns_of(SUITE, RIGHT),
        rollout={"max_sampler_mismatch": 0.01},
        events=(*others, *events, {"event": "complete", "step": 20}),
    )
    write_steps(folder, 20)
    assert home.table().rows[0].suspect == said


def test_records_that_contradict_each_other_leave_the_scores_and_a_mark(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    columns, rollout = columns_of(SUITE, RIGHT), {"max_sampler_mismatch": 0.01}
    tallies = {"greedy": {"correct": 2, "graded": 6}, "sampled": {"correct": 4, "graded": 12}}
    evaluated = {"event": "evaluated", "step": 20, "benchmarks": tallies}
    folder = home.run(
        "plain", 1, columns=columns, rollout=rollout, events=(evaluated, {"event": "complete", "step": 20})
    )
    write_steps(folder, 20)
    lines = folder.metrics_file.read_text().splitlines(keepends=True)
    assert home.table().rows[0].suspect == (
        "seed 1: events.jsonl has 4 of 12 right on sampled, which its generations contradict",
    )
    tallies["sampled"]["correct"] = 5
    append_line(folder.events_file, {"time": 1.8e9, **evaluated})
    assert home.table().rows[0].suspect == ()
    for damaged in (lines[:10], [*lines[:5], *lines[6:]], [*lines[:5], lines[4], *lines[5:]]):
        folder.metrics_file.write_text("".join(damaged))
        row = home.table().rows[0]
        assert row.outcome == "complete"
        (reason,) = row.suspect
        assert "metrics damaged" in reason


def test_damaged_metrics_leave_the_scores_and_a_mark(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, columns=columns_of(SUITE, RIGHT), rollout={"max_sampler_mismatch": 0.01})
    folder.metrics_file.write_text('garbage\n{"step": 1}\n')
    (row,) = home.table().rows
    assert row.outcome == "complete"
    assert row.average.percent == pytest.approx(100 * 7 / 18)
    (reason,) = row.suspect
    assert reason.startswith(f"seed 1: metrics damaged: {folder.metrics_file}:1 cannot be read")
    # A table at an equal budget needs them.
    home.want("other", (1,))
    write_steps(home.run("other", 1, columns=columns_of(SUITE, RIGHT)), 20)
    assert [row.outcome for row in home.table(equal="seconds").rows] == ["records damaged", "complete"]


def test_without_a_limit_metrics_are_not_read(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, columns=columns_of(SUITE, RIGHT)).metrics_file.write_text('garbage\n{"step": 1}\n')
    (row,) = home.table().rows
    assert (row.outcome, row.suspect) == ("complete", ())


def test_a_comparison_with_a_suspect_row_says_so(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    suspect = {each.arm: each.suspect for each in table.comparisons}
    # One of its seeds has nothing right.
    assert suspect == {"masked": (), "collapsing": ("collapsing",), "partial": ()}
    assert "not resolved, suspect" in render(table, "text")


def test_seeds_with_the_same_reason_are_named_together(home: SyntheticHome) -> None:
    home.want("plain", (1, 2, 3))
    columns = columns_of(SUITE, RIGHT)
    for seed in (1, 3):
        home.run("plain", seed, columns=columns | {"correct": [0] * 18})
    home.run("plain", 2, columns=columns, provenance={"dirty": True})
    (row,) = home.table().rows
    assert row.suspect == ("seeds 1 3: 0 % on every benchmark",)
    assert row.provenance == ("seed 2: from a changed source tree",)


def made_from(home: SyntheticHome, arm: str, seed: int, **digests: str) -> None:
    """A run of local files: `training` data, a `model`, or benchmarks by name."""
    files = {what: {"path": f"{what}.jsonl", "sha256": {f"{what}.jsonl": each}} for what, each in digests.items()}
    model = {"model": files.pop("model")} if "model" in files else {}
    training = {"training": files.pop("training")} if "training" in files else {}
    provenance = {**model, "data": {**training, "benchmarks": files}}
    home.run(arm, seed, columns=columns_of(SUITE, RIGHT), provenance=provenance)


def test_a_seed_made_from_other_files_than_the_rest_is_marked(home: SyntheticHome) -> None:
    home.want("plain", (1, 2, 3))
    for seed, digest in ((1, "aa"), (2, "bb"), (3, "aa")):
        made_from(home, "plain", seed, training=digest)
    (row,) = home.table().rows
    assert row.provenance == ("seed 2: made with other files than most of the row's other seeds (training data)",)
    assert "complete, other files" in render(home.table(), "text")


def test_a_seed_made_from_another_commit_is_marked_and_neither_a_local_copy_nor_an_older_record_is(
    home: SyntheticHome,
) -> None:
    home.want("plain", (1, 2, 3, 4, 5))
    made_from(home, "plain", 4, model="aa")
    for seed, known in ((1, {"commit": "aa"}), (2, {"commit": "bb"}), (3, {"commit": "aa"}), (5, {})):
        told = {"model": {"path": "some/model", "revision": None, **known}}
        home.run("plain", seed, columns=columns_of(SUITE, RIGHT), provenance=told)
    (row,) = home.table().rows
    said = "seed 2: made with other files than most of the row's other seeds (commit of the model)"
    assert row.provenance == (said,)


def test_all_rows_are_to_be_graded_on_the_same_commit_of_a_benchmark(home: SyntheticHome) -> None:
    for arm, commit in (("plain", "aa"), ("other", "bb"), ("third", "aa")):
        home.want(arm, (1,))
        told = {"data": {"benchmarks": {"greedy": {"hub": "some/problems", "commit": commit}}}}
        home.run(arm, 1, columns=columns_of(SUITE, RIGHT), provenance=told)
    said = "seed 1: made with other files than most other runs here (commit of benchmark greedy)"
    assert [row.provenance for row in home.table().rows] == [(), (said,), ()]


@pytest.mark.parametrize(
    ("attempts", "is_marked"),
    [
        ([(0, "a"), (8, "a")], False),
        ([(0, "a"), (8, "b")], True),
        ([(0, "b"), (0, "a"), (8, "a")], False),  # the first left nothing
        ([(0, "b"), (0, "b"), (8, None)], False),  # an attempt that does not tell
    ],
)
def test_a_run_that_went_on_on_other_hardware_is_marked(home: SyntheticHome, attempts, is_marked) -> None:
    home.want("plain", (1,))
    known = [
        {"event": "resumed", "step": step, **({"hardware": {"gpus": [node]}} if node else {})}
        for step, node in attempts
    ]
    home.run("plain", 1, columns=columns_of(SUITE, RIGHT), events=(*known, {"event": "complete", "step": 20}))
    (row,) = home.table().rows
    said = ("seed 1: partly made with other code, versions or hardware",)
    assert row.provenance == (said if is_marked else ())


@pytest.mark.parametrize(
    ("begun_with", "is_marked"),
    [
        ({"device": "cpu", "threads": 2}, False),
        ({"device": "cuda", "threads": 1}, True),
        (None, False),  # an earlier release did not tell
    ],
)
def test_a_run_that_went_on_on_another_device_is_marked(home: SyntheticHome, begun_with, is_marked) -> None:
    home.want("plain", (1,))
    (then, now) = ({"resources": told} if told else {} for told in (begun_with, {"device": "cpu", "threads": 1}))
    then |= {"commit": "0123456789abcdef"}
    home.run("plain", 1, columns=columns_of(SUITE, RIGHT), provenance=now, earlier=[then])
    (row,) = home.table().rows
    said = ("seed 1: partly made with other code, versions or hardware",)
    assert row.provenance == (said if is_marked else ())


@pytest.mark.parametrize("what", ["training", "model"])
def test_rows_may_differ_in_data_and_model(home: SyntheticHome, what: str) -> None:
    for arm, digest in (("plain", "aa"), ("other", "bb"), ("third", "aa")):
        home.want(arm, (1, 2))
        for seed in (1, 2):
            made_from(home, arm, seed, **{what: digest})
    # Seeds that the row has not do not speak for it.
    for seed in (3, 4, 5):
        made_from(home, "other", seed, **{what: "aa"})
    assert [row.provenance for row in home.table().rows] == [()] * 3


def test_where_no_files_are_the_usual_ones_all_are_marked(home: SyntheticHome) -> None:
    home.want("plain", (1, 2, 3))
    made_from(home, "plain", 1, model="aa", training="aa")
    made_from(home, "plain", 2, model="bb", training="aa")
    # Of the third one no file is known.
    made_from(home, "plain", 3)
    (row,) = home.table().rows
    assert row.provenance == ("seeds 1 2: made with other files than most of the row's other seeds (model)",)


def test_benchmarks_must_be_the_same_in_all_runs(home: SyntheticHome) -> None:
    for arm, digest in (("plain", "aa"), ("other", "bb"), ("third", "aa")):
        home.want(arm, (1, 2))
        for seed in (1, 2):
            made_from(home, arm, seed, greedy=digest)
    said = "seeds 1 2: made with other files than most other runs here (benchmark greedy)"
    assert [row.provenance for row in home.table().rows] == [(), (said,), ()]
    del home.rows["third"]
    assert [row.provenance for row in home.table().rows] == [(said,), (said,)]
