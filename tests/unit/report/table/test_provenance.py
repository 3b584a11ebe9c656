"""Marks of rows whose runs were made from other code, files or hardware than the rest."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic_home import RIGHT, SUITE, SyntheticHome, columns_of

from tepo_lab.report.render.formats import render

OTHER_FILES = "made with other files than most"
MIXED = ("seed 1: partly made with other code, versions or hardware",)


def made_from(home: SyntheticHome, arm: str, seed: int, **inputs: str | None) -> None:
    """A run of a `model`, `training` data, or benchmarks by name: local files by SHA-256, or "commit NAME" of the hub.

    None: an older release recorded neither.
    """

    def place(name: str, value: str | None) -> dict[str, Any]:
        if value is None or value.startswith("commit "):
            return {"hub": f"some/{name}"} | ({"commit": value.removeprefix("commit ")} if value else {})
        return {"path": f"{name}.jsonl", "sha256": {f"{name}.jsonl": value}}

    places = {name: place(name, value) for name, value in inputs.items()}
    provenance: dict[str, Any] = {name: places.pop(name) for name in ("model",) if name in places}
    data = {name: places.pop(name) for name in ("training",) if name in places}
    provenance["data"] = {**data, "benchmarks": places}
    home.run(arm, seed, columns=columns_of(SUITE, RIGHT), provenance=provenance)


@pytest.mark.parametrize(
    ("what", "by_seed", "expected"),
    [
        ("training", ["aa", "bb", "aa"], f"seed 2: {OTHER_FILES} of the row's other seeds (training data)"),
        # Neither a local copy nor an older record is compared with a commit.
        (
            "model",
            ["commit aa", "commit bb", "commit aa", "aa", None],
            f"seed 2: {OTHER_FILES} of the row's other seeds (commit of the model)",
        ),
        # Where no files are the usual ones all are marked.
        ("model", ["aa", "bb", None], f"seeds 1 2: {OTHER_FILES} of the row's other seeds (model)"),
        ("model", ["aa", "aa", "aa"], None),
    ],
)
def test_a_rows_seeds_are_to_be_made_from_the_same_files(
    home: SyntheticHome, what: str, by_seed: list[str | None], expected: str | None
) -> None:
    home.want("plain", (1, 2, 3, 4, 5))
    for seed, value in enumerate(by_seed, start=1):
        made_from(home, "plain", seed, **{what: value})
    (row,) = home.table().rows
    assert row.provenance == ((expected,) if expected else ())
    assert (", other files" in render(home.table(), "text")) == bool(expected)


@pytest.mark.parametrize(
    ("what", "values", "marked"),
    [
        ("greedy", ("aa", "bb", "aa"), "benchmark greedy"),
        ("greedy", ("commit aa", "commit bb", "commit aa"), "commit of benchmark greedy"),
        # Arms may differ in these on purpose.
        ("training", ("aa", "bb", "aa"), None),
        ("model", ("aa", "bb", "aa"), None),
    ],
)
def test_all_rows_are_to_be_graded_on_the_same_benchmarks(
    home: SyntheticHome, what: str, values: tuple[str, ...], marked: str | None
) -> None:
    for arm, value in zip(("plain", "other", "third"), values, strict=True):
        home.want(arm, (1, 2))
        for seed in (1, 2):
            made_from(home, arm, seed, **{what: value})
    mark = (f"seeds 1 2: {OTHER_FILES} other runs here ({marked})",) if marked else ()
    assert [row.provenance for row in home.table().rows] == [(), mark, ()]
    # Of two arms neither is the usual one.
    del home.rows["third"]
    assert [row.provenance for row in home.table().rows] == [mark, mark]


@pytest.mark.parametrize(
    ("attempts", "is_marked"),
    [
        ([(0, "a"), (8, "a")], False),
        ([(0, "a"), (8, "b")], True),
        ([(0, "b"), (0, "a"), (8, "a")], False),  # nothing is left of the first attempt
        ([(0, "b"), (0, "b"), (8, None)], False),  # an attempt that did not record it
    ],
)
def test_a_run_resumed_on_other_hardware_is_marked(
    home: SyntheticHome, attempts: list[tuple[int, str | None]], is_marked: bool
) -> None:
    home.want("plain", (1,))
    resumed = [
        {"event": "resumed", "step": step, **({"hardware": {"gpus": [node]}} if node else {})}
        for step, node in attempts
    ]
    home.run("plain", 1, columns=columns_of(SUITE, RIGHT), events=(*resumed, {"event": "complete", "step": 20}))
    assert home.table().rows[0].provenance == (MIXED if is_marked else ())


@pytest.mark.parametrize(
    ("earlier", "is_marked"),
    [
        ({"resources": {"device": "cpu", "threads": 2}}, False),
        ({"resources": {"device": "cuda", "threads": 1}}, True),
        ({}, False),  # an older release did not record it
        ({"commit": "fedcba9876543210"}, True),
    ],
)
def test_a_run_resumed_with_other_code_or_on_another_device_is_marked(
    home: SyntheticHome, earlier: dict[str, Any], is_marked: bool
) -> None:
    home.want("plain", (1,))
    now = {"resources": {"device": "cpu", "threads": 1}}
    before = {"commit": "0123456789abcdef", **earlier}
    home.run("plain", 1, columns=columns_of(SUITE, RIGHT), provenance=now, earlier=[before])
    assert home.table().rows[0].provenance == (MIXED if is_marked else ())
