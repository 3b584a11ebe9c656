"""The table that shows a sweep."""

from __future__ import annotations

from tepo_lab.execute.planning.plan import make_plan
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.tables import resolved_reports, sweep_tables


def test_chosen_arms_have_a_table_of_the_sweep(tmp_path):
    overrides = ["profile=nano", "arms=[tepo]", "seeds=[1]"]
    for entry in make_plan(tmp_path, [expand(*load_sweep("table3", overrides))]).entries:
        prepare_folder(entry)
    ((table,), command) = sweep_tables(tmp_path, "table3", overrides)
    assert [row.label for row in table.rows] == ["TEPO"]
    assert command.endswith("sweeps/table3.yaml profile=nano 'arms=[tepo]'")
    ((paper,), command) = sweep_tables(tmp_path, "table3", ["profile=nano", "seeds=[1]"])
    assert len(paper.rows) > 20
    assert command == "tepo-lab report table3 profile=nano"


def test_the_untrained_model_alone_is_of_its_sweeps(tmp_path):
    for entry in make_plan(tmp_path, [expand(*load_sweep("panel-e", []))]).entries:
        if not entry.planned.spec.arm.trained:
            prepare_folder(entry)
    resolved = resolved_reports(tmp_path, "panel-e", [], panels=[])
    assert (resolved.has_runs, resolved.has_base) == (False, True)
    assert not resolved_reports(tmp_path / "other", "panel-e", [], panels=[]).has_base
