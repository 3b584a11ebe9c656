"""What a session says of runs that it cannot go on with. No Ray is started."""

from __future__ import annotations

import io

from rich.console import Console

from tepo_lab.execute.planning.plan import make_plan
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.execute.running.sweep import _opening, _other_rules, run_sweep
from tepo_lab.execute.showing.listing import plan_table
from tepo_lab.records.files import append_line
from tepo_lab.registry.expand import expand, load_sweep
from tests.generation_columns import write_evaluation


def test_a_blocked_run_is_told_of_counted_apart_and_not_called_done(tmp_path):
    expansion = expand(*load_sweep("panel-e", ("arms=[tepo]", "seeds=[1]", "base=false")))
    (each,) = make_plan(tmp_path, [expansion]).entries
    prepare_folder(each)
    append_line(each.folder.events_file, {"time": 1.0, "event": "complete", "step": each.planned.spec.steps})
    stream = io.StringIO()
    console = Console(file=stream, width=100)
    with run_sweep(tmp_path, expansion, console=console) as session:
        assert [failed.state for failed in session.failed] == ["damaged"]
    session.say_what_it_cost()
    console.print(plan_table(session.plan))
    said = stream.getvalue()
    assert "Nothing was started; 1 run not done, as told below." in said
    assert f"Not done: {each.folder.name}: its evaluation at step" in said
    assert f"remove {each.folder.path} to run it anew." in said
    assert "0 to do, 1 blocked.\nNothing can be run; 1 run blocked for the reason told above." in said
    assert "done before" not in said
    assert "Nothing is left" not in said
    assert _opening(session.plan, expansion).endswith(": 0 runs to do, 1 blocked.")


def test_a_run_that_collapsed_by_another_sweeps_rule_is_told_of(tmp_path):
    expansion = expand(*load_sweep("panel-e", ("arms=[tepo]", "seeds=[1]", "base=false", "trainer.steps=4")))
    (each,) = make_plan(tmp_path, [expansion]).entries
    prepare_folder(each)
    end = {"time": 1.0, "event": "collapsed", "step": 2, "rule": "reward/mean < 0.9"}
    append_line(each.folder.events_file, end)
    write_evaluation(each.folder, 2, each.planned.spec.suite)
    (line,) = _other_rules(make_plan(tmp_path, [expansion]), expansion)
    assert line.startswith(
        f"Not run again: {each.folder.name} collapsed at step 2 by reward/mean < 0.9, which is no rule"
    )
    own = expansion.sweep.stop[0].when
    append_line(each.folder.events_file, end | {"rule": own})
    assert not list(_other_rules(make_plan(tmp_path, [expansion]), expansion))
