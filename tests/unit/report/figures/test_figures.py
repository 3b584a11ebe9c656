from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread
from synthetic_home import SyntheticHome
from synthetic_steps import write_steps

from tepo_lab.errors import ConfigError, RecordError
from tepo_lab.report.figures.data import figure_lines
from tepo_lab.report.figures.draw import CELLS, bars, cells, curves, draw, forest
from tepo_lab.report.figures.series import ArmRuns, gaps, shown_arms, wanted_arms
from tepo_lab.report.figures.style import COLOURS, Drawn, save, svg_fragment
from tepo_lab.schema.base import validate
from tepo_lab.schema.figure import FigureReport, Plot

ENTROPY = Plot(metric="actor/entropy", label="Entropy (nats)")
REWARD = Plot(metric="reward/mean", label="Mean reward (%)", percent=True, average=True)


@pytest.fixture
def trained(home: SyntheticHome) -> SyntheticHome:
    """Two arms of three seeds (one collapsed at step 6), one of one seed, and one that was not run."""
    for arm in ("plain", "masked", "single", "absent"):
        home.want(arm)
    for seed in (1, 2, 3):
        write_steps(home.run("plain", seed), 10, level=float(seed))
        collapses = seed == 2
        event = (
            {"event": "collapsed", "step": 6, "rule": "reward/mean < 0.02"}
            if collapses
            else {"event": "complete", "step": 10}
        )
        write_steps(home.run("masked", seed, parent="plain", events=(event,)), 6 if collapses else 10, level=1.0)
    write_steps(home.run("single", 1), 10, level=0.5, lacking=("actor/entropy", "cells/positive_falling"))
    return home


def arms_of(home: SyntheticHome) -> list[ArmRuns]:
    return wanted_arms(home.path, list(home.rows.values()))


def draw_curves(home: SyntheticHome, *plots: Plot) -> Drawn:
    return curves(arms_of(home), plots, name="f", title="A figure", profile="nano", home=home.path)


def words(drawn: Drawn) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in drawn.figure.texts)


def test_a_series_is_mean_lowest_and_highest_over_the_seeds_that_have_the_step(trained: SyntheticHome) -> None:
    plain, masked, *_ = arms_of(trained)
    series = plain.series("seconds/step")
    assert series is not None
    assert series.steps.tolist() == list(range(1, 11))
    assert series.mean.tolist() == pytest.approx([4.0] * 10)
    assert (series.low[0], series.high[0]) == (2.0, 6.0)
    assert series.overall() == pytest.approx(4.0)
    short = masked.series("seconds/step")
    assert short is not None
    assert np.isnan(short.values).sum(1).tolist() == [0, 4, 0]
    assert short.mean.tolist() == pytest.approx([2.0] * 10)
    assert plain.series("no/such") is None


def test_values_that_were_not_finite_are_gaps(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1)
    folder.metrics_file.write_text('{"step": 1, "x": 2.0}\n{"step": 2, "x": null}\n{"step": 3, "x": 4.0}\n')
    series = arms_of(home)[0].series("x")
    assert series is not None
    np.testing.assert_array_equal(series.mean, [2.0, np.nan, 4.0])
    np.testing.assert_array_equal(series.low, [2.0, np.nan, 4.0])
    assert series.overall() == 3.0


def test_runs_whose_records_are_damaged_are_named(home: SyntheticHome) -> None:
    home.want("plain", (1, 2))
    home.want("masked", (1,))
    for arm, seed in (("plain", 1), ("plain", 2), ("masked", 1)):
        write_steps(home.run(arm, seed), 3, level=1.0)
    for arm, seed in (("plain", 2), ("masked", 1)):
        home.run(arm, seed).metrics_file.write_text("garbage\n" + '{"step": 2}\n')
    shown = shown_arms(home.table())
    for arms in (arms_of(home), shown):
        assert gaps(arms) == ["PLAIN: records of seed 2 damaged", "MASKED: records of seed 1 damaged"]


def test_a_curve_is_drawn_for_each_arm_with_a_band_over_its_seeds(trained: SyntheticHome) -> None:
    drawn = draw_curves(trained, REWARD, ENTROPY)
    reward, entropy = drawn.figure.axes
    lines = [line for line in reward.lines if line.get_marker() in "osD"]
    assert [to_hex(line.get_color()).upper() for line in lines] == [COLOURS[0], COLOURS[1], COLOURS[2]]
    expected = arms_of(trained)[0].series("reward/mean")
    assert expected is not None
    assert np.asarray(lines[0].get_ydata()).tolist() == pytest.approx((100 * expected.mean).tolist())
    assert (len(reward.collections), len(entropy.collections)) == (2, 2)
    band = reward.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(100 * expected.high.max())
    assert (reward.get_xlabel(), reward.get_ylabel()) == ("Training step", "Mean reward (%)")
    crosses = [line for line in reward.lines if line.get_marker() == "x"]
    assert [float(cross.get_xdata()[0]) for cross in crosses] == [6.0]


def test_a_figure_names_its_profile_its_seeds_and_what_is_missing(trained: SyntheticHome) -> None:
    drawn = draw_curves(trained, REWARD, ENTROPY)
    assert drawn.gaps == (
        "MASKED: seed 2 collapsed at step 6",
        "SINGLE: seed 2 not run, seed 3 not run",
        "ABSENT: not run",
        "SINGLE: no actor/entropy recorded",
    )
    text = words(drawn)
    assert "A figure (profile nano)" in text
    assert (
        "Missing or cut short: not run: ABSENT; MASKED: seed 2 collapsed at step 6; SINGLE: seed 2 not run, seed 3 not"
        " run; SINGLE: no actor/entropy recorded." in text
    )
    overall = arms_of(trained)[0].series("reward/mean")
    assert overall is not None
    assert f"mean over steps: PLAIN {100 * overall.overall():.3g}" in text
    labels = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert sorted(labels) == ["MASKED (3 seeds)", "PLAIN (3 seeds)", "SINGLE (1 seed)"]


def test_with_nothing_to_draw_the_error_names_the_arms_and_the_fix(home: SyntheticHome) -> None:
    home.want("plain")
    home.run("plain", 1)
    for made in (
        lambda: draw_curves(home, REWARD),
        lambda: cells(arms_of(home), name="f", title="A figure", profile="nano", home=home.path),
    ):
        with pytest.raises(RecordError, match=r"A figure: no run of its arms \(plain\) .* run a sweep with them first"):
            made()
    with pytest.raises(RecordError, match="no run has a full evaluation yet"):
        bars(home.table(), name="f", title="A figure")
    with pytest.raises(RecordError, match="no row has a parent"):
        forest(home.table(), name="f", title="A figure")


def test_cells_are_stacked_to_the_shares_of_the_tokens(trained: SyntheticHome) -> None:
    arms = [arm for arm in arms_of(trained) if arm.arm != "plain"]
    drawn = cells(arms, name="f", title="Cells", profile="nano", home=trained.path)
    (axes,) = drawn.figure.axes
    assert axes.get_title() == "MASKED (3 seeds)"
    tops = [layer.get_paths()[0].vertices[:, 1].max() for layer in axes.collections[: len(CELLS)]]
    assert tops == pytest.approx([20.0, 40.0, 60.0, 80.0])
    assert "SINGLE: no cells/positive_falling recorded" in drawn.gaps


def test_bars_and_intervals_are_those_of_the_table(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    drawn = bars(table, name="f", title="Scores")
    axes = drawn.figure.axes
    assert [plot.get_title() for plot in axes] == ["Greedy", "Sampled @4", "Avg."]
    shown = [row for row in table.all_rows if row.average is not None]
    widths = [bar.get_width() for bar in axes[2].patches]
    assert widths == pytest.approx([row.average.percent for row in shown])
    ends = [segment[:, 0].tolist() for segment in axes[2].collections[0].get_segments()]
    np.testing.assert_allclose(ends, [row.average.ci95 for row in shown], atol=1e-9)
    assert any("broken" in gap.lower() for gap in drawn.gaps)


def test_the_forest_has_an_interval_and_a_verdict_for_each_comparison(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    drawn = forest(table, name="f", title="Differences")
    (axes,) = drawn.figure.axes
    compared = [one for one in table.comparisons if one.ci95 is not None]
    intervals = [list(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 1.6]
    np.testing.assert_allclose(np.array(intervals, dtype=float), [one.ci95 for one in compared])
    verdicts = [text.get_text() for text in axes.texts]
    assert all(text.startswith(one.verdict.partition(" (")[0]) for text, one in zip(verdicts, compared, strict=True))
    assert len(drawn.gaps) == len(table.comparisons) - len(compared)


@pytest.mark.integration
def test_files_are_written_in_three_formats_the_same_each_time(trained: SyntheticHome, tmp_path: Path) -> None:
    for number in (1, 2):
        drawn = draw_curves(trained, REWARD)
        for ending in ("png", "svg", "pdf"):
            save(drawn.figure, tmp_path / f"{number}" / f"f.{ending}")
    for ending, head in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first, second = ((tmp_path / f"{number}" / f"f.{ending}").read_bytes() for number in (1, 2))
        assert first.startswith(head)
        assert first == second
    pixels = imread(tmp_path / "1" / "f.png")
    assert pixels[..., :3].std() > 0.05
    with pytest.raises(ConfigError, match=r"f\.jpg: figures are written as \.png, \.svg, \.pdf"):
        save(drawn.figure, tmp_path / "f.jpg")


def test_figures_on_one_page_share_no_ids_and_fetch_nothing(trained: SyntheticHome) -> None:
    fragments = [svg_fragment(draw_curves(trained, REWARD), prefix) for prefix in ("a", "b")]
    ids = [set(re.findall(r'\bid="([^"]+)"', fragment)) for fragment in fragments]
    assert ids[0]
    assert not ids[0] & ids[1]
    for fragment, prefix in zip(fragments, "ab", strict=True):
        assert fragment.startswith("<svg role=")
        references = re.findall(r'(?:xlink:href="|url\()#([^")]+)', fragment)
        assert references
        assert all(reference.startswith(f"{prefix}-") for reference in references)
        assert set(re.findall(r'(?:href|src)="(?!#)', fragment)) == set()


def test_labels_are_shown_as_they_are(home: SyntheticHome) -> None:
    row = home.want("plain", (1,))
    home.rows["plain"] = type(row)(row.panel, row.arm, "cost $5 & <b> $6", row.family, row.seeds)
    write_steps(home.run("plain", 1), 3)
    assert "cost $5 &amp; &lt;b&gt; $6 (1 seed)" in svg_fragment(draw_curves(home, REWARD), "a")


def test_a_metric_that_no_run_records_is_an_error_with_the_nearest(trained: SyntheticHome) -> None:
    rows = list(trained.rows.values())

    def asked(metric: str) -> FigureReport:
        plots = [{"metric": metric, "label": "y"}]
        values = {"name": "mine", "title": "Mine", "profile": "nano", "panels": {"e": {"sweep": "panel-e"}}}
        return validate(FigureReport, values | {"draw": "curves", "plots": plots}, where="mine.yaml")

    with pytest.raises(ConfigError, match=r"Mine: no run records a step metric 'reward/meen'. Did you mean 'reward/me"):
        draw(asked("reward/meen"), rows, trained.table, profile="nano", home=trained.path)
    with pytest.raises(ConfigError, match="no run records a step metric 'reward/meen'"):
        list(figure_lines(asked("reward/meen"), rows, trained.table, profile="nano", home=trained.path))
    # What other arms record is no mistake.
    drawn = draw(asked("mask/share"), rows, trained.table, profile="nano", home=trained.path)
    assert "PLAIN: no mask/share recorded" in drawn.gaps


def test_a_report_declares_what_is_drawn(trained: SyntheticHome) -> None:
    values = {"name": "mine", "title": "Mine", "profile": "nano", "panels": {"e": {"sweep": "panel-e"}}}
    report = validate(FigureReport, values | {"draw": "cells"}, where="mine.yaml")
    rows = list(trained.rows.values())
    drawn = draw(report, rows, trained.table, profile="nano", home=trained.path)
    assert (drawn.name, drawn.title) == ("mine", "Mine, profile nano")
    for wrong in ({"draw": "curves"}, {"draw": "bars", "plots": [{"metric": "a", "label": "b"}]}):
        with pytest.raises(ConfigError, match="draw: curves takes plots, and nothing else does"):
            validate(FigureReport, values | wrong, where="mine.yaml")
