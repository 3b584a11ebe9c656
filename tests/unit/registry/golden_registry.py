"""The golden files of the registry: every arm, profile and sweep as it resolves, and as `tepo-lab ls` lists it.

Stale files fail `test_registry_golden.py`. When a change is meant, make them again and read the difference:

    python tests/unit/registry/golden_registry.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tepo_lab.execute.showing.listing import registry_listing
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import PlannedRun, expand, load_sweep, planned
from tepo_lab.registry.locations import names, package_root
from tepo_lab.registry.values import flatten

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "registry"

#: What `tepo-lab ls` lists.
KINDS = ("arms", "sweeps", "profiles", "tables", "figures")

#: What an arm's golden file leaves to its profile's.
OF_THE_PROFILE = {"model", "data", "prompt", "suite", "rollout", "trainer", "resources", "profile"}


def golden_texts() -> dict[str, str]:
    """File name -> content, for every golden file."""
    profiles = names("experiments", "profile")
    arms = names("experiments", "arm")
    texts = {f"arms/{arm}.json": _text(arm_values(arm)) for arm in arms}
    texts |= {f"profiles/{profile}.json": _text(profile_values(profile)) for profile in profiles}
    texts |= {f"sweeps/{sweep}.txt": sweep_lines(sweep) for sweep in names("sweeps")}
    families = {profile: {arm: planned(compose_run(arm, profile)).family for arm in arms} for profile in profiles}
    texts |= {f"ls/{kind}.json": _text(rows) for kind, rows in registry_listing(KINDS).items()}
    return texts | {"families.json": _text(families)}


def arm_values(arm: str) -> dict[str, Any]:
    """An arm on nano: its description, its objective, and what else differs from the profile."""
    spec = compose_run(arm, "nano").model_dump(mode="json")
    profile = flatten(compose_run("base", "nano").model_dump(mode="json"))
    rest = flatten({key: value for key, value in spec.items() if key in OF_THE_PROFILE})
    other = {key: value for key, value in rest.items() if profile.get(key) != value}
    return {"arm": spec["arm"], "objective": spec["objective"], "differs_from_profile": other}


def profile_values(profile: str) -> dict[str, Any]:
    spec = compose_run("base", profile).model_dump(mode="json")
    return {key: value for key, value in spec.items() if key in OF_THE_PROFILE}


def sweep_lines(sweep: str) -> str:
    """One line a run, in the order they are started."""
    return "".join(_line(run) for run in expand(*load_sweep(sweep)).runs)


def _line(run: PlannedRun) -> str:
    spec = run.spec
    return f"{run.run_id} {run.folder} steps={list(spec.evaluation_steps)} {spec.arm.label}\n"


def _text(values: Any) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    texts = golden_texts()
    for path in GOLDEN.rglob("*.*"):
        if str(path.relative_to(GOLDEN)) not in texts:
            path.unlink()
    for name, text in texts.items():
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(texts)} files under {GOLDEN.relative_to(package_root())}")  # noqa: T201


if __name__ == "__main__":
    main()
