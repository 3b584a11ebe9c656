"""From a sweep's name or file to its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import PrivateAttr

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.axes import Point, point_label, points
from tepo_lab.registry.compose import (
    SETTABLE,
    SHORT_KEYS,
    arm_file,
    check_override,
    compose_run,
    file_of,
    unsourced,
)
from tepo_lab.registry.difference import check_against_parent
from tepo_lab.registry.identity import family, folder_name, run_id, science_text
from tepo_lab.registry.locations import find, find_named, names, package_root, parse_yaml, read_yaml
from tepo_lab.registry.values import flatten
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.step_metrics import STEP_METRICS
from tepo_lab.schema.sweep import Part, Sweep

#: Keys that an override sets on the sweep itself; all others are set on every run's configuration.
SWEEP_KEYS = frozenset(Sweep.model_fields.keys() - {"name", "title", "overrides", "profiles"}) | {"profile"}

#: Sweep keys that a part may set too: an override of theirs holds for all parts.
PART_KEYS = frozenset({"seeds", "steps"})

#: The untrained model is evaluated once, whatever the seeds of the trained runs.
BASE_ARM, BASE_SEED = "base", 0


#: Sweep keys that hold values of its runs.
_VALUE_KEYS = ("steps", "axes", "points", "parts")


class _ReadSweep(Sweep):
    """A sweep that knows its file, and the overrides of its values, to name them where a value fits no run."""

    _place: str = PrivateAttr(default="")


@dataclass(frozen=True)
class PlannedRun:
    """A resolved run with its identity. `run_id` and `family` as in `tepo_lab.registry.identity`."""

    spec: RunSpec
    run_id: str
    family: str
    folder: str


@dataclass(frozen=True)
class Expansion:
    """A sweep with its runs in the order they are started."""

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    overrides: tuple[str, ...] = field(default=())

    @property
    def notes(self) -> list[str]:
        """What a careful reader would ask about: values of a user's arms that say no source."""
        return unsourced_notes(arm for arm in self.sweep.all_arms if arm_file(arm).trained)


@dataclass(frozen=True)
class Variant:
    """An arm at one point of a part of a sweep, resolved, for all of the part's seeds. `spec` has the first."""

    spec: RunSpec
    part: Part


def is_path(name: str) -> bool:
    """Whether a name given by the user is a file's path."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def load_sweep(name: str, overrides: Sequence[str] = ()) -> tuple[Sweep, tuple[str, ...]]:
    """A sweep by its name, or by the path of a YAML file anywhere on disk.

    Returns the sweep with the overrides that are its own applied, and those left for its runs.
    Raises `ConfigError` for an unknown name (with the nearest), a wrong key, type or value.
    """
    path = Path(name) if is_path(name) else find("sweeps", name)
    values = read_yaml(path)
    if "name" in values:
        raise ConfigError(f"{path}: a sweep is called by its file's name; remove the key 'name'.")
    _check_runs_keys(values, str(path))
    own: dict[str, str] = {}
    rest = []
    for text in overrides:
        key, value = check_override(text)
        if key in SWEEP_KEYS:
            values = _with_own(values, key, _read(text, value))
            own[key] = text
        else:
            _check_known(text, key, value)
            rest.append(text)
    if "arms" in own and values["arms"] == [] and not values.get("parts"):
        raise ConfigError(f"{own['arms']}: name at least one arm.")
    sweep = validate(_ReadSweep, values | {"name": path.stem}, where=str(path), arguments=own)
    sweep._place = " with ".join([str(path), *(own[key] for key in _VALUE_KEYS if key in own)])
    _check_names(sweep, str(path), own)
    return sweep, tuple(rest)


def _check_runs_keys(values: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` for a key of a run's configuration that stands among those of a sweep or of a part of it."""
    parts = values.get("parts")
    for block in [values, *(parts if isinstance(parts, list) else [])]:
        for key, value in block.items() if isinstance(block, dict) else ():
            if str(key).partition(".")[0] in SETTABLE - {"profile"}:
                inner = next(iter(flatten({key: value})))
                raise ConfigError(f"{where}: {key!r} is set on the runs: write overrides: {{{inner}: ...}}.")


def _check_known(text: str, key: str, value: str) -> None:
    """Raise `ConfigError` for a key that is neither a sweep's nor a run's."""
    first = key.partition(".")[0]
    if key == "seed":
        raise ConfigError(f"{text!r}: a sweep names its seeds as a list; write seeds=[{value}].")
    if first in SWEEP_KEYS and first != "profile":
        raise ConfigError(f"{text!r}: {first} is set as a whole: {first}={{...}}, or in the sweep's file.")
    if first in Sweep.model_fields:
        raise ConfigError(f"{text!r}: {first} is set in the sweep's file alone.")
    if first not in SETTABLE | {"arm", *(short.partition(".")[0] for short in SHORT_KEYS)}:
        raise ConfigError(f"{text!r}: unknown key {first!r}.{nearest(first, SWEEP_KEYS | SETTABLE)}")


def _check_names(sweep: Sweep, where: str, own: Mapping[str, str]) -> None:
    """Raise `ConfigError` for an arm, profile or table that does not exist, a label of an arm that the sweep does not
    have, or a stop rule on what no step records, which would never hold."""
    for name in sweep.profiles:
        find_named("experiments", name, "profile", where=own.get("profile", where))
    for part in (sweep, *sweep.parts):
        for arm in part.arms:
            find_named("experiments", arm, "arm", where=own.get("arms" if part is sweep else "parts", where))
    for rule in sweep.stop:
        if rule.metric not in STEP_METRICS:
            mend = nearest(rule.metric, STEP_METRICS)
            raise ConfigError(f"{own.get('stop', where)}: stop: no step records {rule.metric!r}.{mend}")
    for name in sweep.feeds:
        known = [*names("reports"), *names("reports", "figures")]
        if name not in known:
            raise ConfigError(f"{own.get('feeds', where)}: feeds: unknown table {name!r}.{nearest(name, known)}")
    for part in (sweep, *sweep.parts):
        for arm in part.labels:
            if arm not in part.arms and "arms" not in own:
                raise ConfigError(
                    f"{own.get('labels', where)}: labels: there is no arm {arm!r} beside it.{nearest(arm, part.arms)}"
                )


def unsourced_notes(arms: Iterable[str]) -> list[str]:
    """A line for each arm of a user's that sets values without a source. Raises `ConfigError` for one of the package's:
    every value there has a source."""
    found = {name: keys for arm in arms for name, keys in unsourced(arm).items()}
    notes = []
    for name, keys in found.items():
        line = f"{file_of(name)}: no source for {', '.join(keys)}; add it under sources:"
        line += f" {{{keys[0]}: {{chosen: why}}}}, or paper, where and says."
        if file_of(name).is_relative_to(package_root()):
            raise ConfigError(line)
        notes.append(line)
    return notes


def expand(sweep: Sweep, overrides: Sequence[str] = ()) -> Expansion:
    """The runs of a sweep: for each profile the untrained model, then one seed of every arm before the second of any.

    Raises `ConfigError` for an unknown arm or profile, an arm that differs from its parent outside `varies`, or an
    override of a key that is an axis.
    """
    found: dict[str, PlannedRun] = {}
    unsourced_notes(sweep.all_arms)
    for profile in sweep.profiles:
        chosen = variants(sweep, profile, overrides)
        trained = [each for each in chosen if each.spec.arm.trained]
        for arm in dict.fromkeys(each.spec.arm.name for each in trained):
            check_against_parent(arm, profile)
        if sweep.base or len(trained) < len(chosen):
            merge(found, [planned(base_run(sweep, profile, overrides))])
        merge(found, _in_rounds(trained))
    return Expansion(sweep, tuple(found.values()), tuple(overrides))


def variants(sweep: Sweep, profile: str, overrides: Sequence[str] = ()) -> list[Variant]:
    """Every arm of a sweep at every one of its points, on one profile, in order. Raises as `expand`."""
    chosen: list[Variant] = []
    for part in sweep.blocks:
        for point in points(part):
            _check_no_axis(sweep, point, overrides)
            settings = _settings(part) | point
            for arm in part.arms:
                trained = arm_file(arm).trained
                seed = (part.seeds or sweep.seeds)[0] if trained else BASE_SEED
                spec = _composed(sweep, arm, profile, overrides, seed, settings)
                chosen.append(Variant(_named(spec, part, point) if trained else spec, part))
    _check_still_distinct([each for each in chosen if each.spec.arm.trained], profile, overrides)
    return chosen


def base_run(sweep: Sweep, profile: str, overrides: Sequence[str] = ()) -> RunSpec:
    """The evaluation of the untrained model that belongs to a sweep's runs on a profile."""
    # An untrained model has no objective that an override could change.
    fitting = [text for text in overrides if not check_override(text)[0].startswith("objective.")]
    return _composed(sweep, BASE_ARM, profile, fitting, BASE_SEED, sweep.overrides)


def _composed(
    sweep: Sweep, arm: str, profile: str, overrides: Sequence[str], seed: int, settings: Mapping[str, Any]
) -> RunSpec:
    """`compose_run`; what is wrong with the sweep's own values is told at its file."""
    try:
        return compose_run(arm, profile, overrides, seed=seed, settings=settings)
    except ConfigError:
        if isinstance(sweep, _ReadSweep):
            compose_run(arm, profile)
            try:
                compose_run(arm, profile, settings=settings)
            except ConfigError as error:
                raise ConfigError(f"{sweep._place}: {error}") from None
        raise


def planned(spec: RunSpec, science: str | None = None) -> PlannedRun:
    """A run with its identity. Args: `science`, the spec's `science_text` where it is at hand."""
    science = science or science_text(spec)
    identity = run_id(spec, science)
    return PlannedRun(spec, identity, family(spec, science), folder_name(spec, identity))


def merge(found: dict[str, PlannedRun], runs: Iterable[PlannedRun]) -> None:
    """Add runs to those found, each once: the same run asked for twice goes to the further step, and is evaluated
    wherever either asks."""
    for run in runs:
        before = found.get(run.run_id)
        found[run.run_id] = run if before is None else _both(before, run)


def _both(first: PlannedRun, second: PlannedRun) -> PlannedRun:
    longer = second if second.spec.steps > first.spec.steps else first
    asked = sorted({*first.spec.evaluation_steps, *second.spec.evaluation_steps} - {longer.spec.steps})
    if not longer.spec.arm.trained or asked == list(longer.spec.trainer.evaluate_at):
        return longer
    trainer = longer.spec.trainer.model_copy(update={"evaluate_at": tuple(asked)})
    spec = longer.spec.model_copy(update={"trainer": trainer})
    return PlannedRun(spec, longer.run_id, longer.family, longer.folder)


def _in_rounds(chosen: Sequence[Variant]) -> Iterator[PlannedRun]:
    sciences = [science_text(each.spec) for each in chosen]
    rounds = max((len(each.part.seeds or ()) for each in chosen), default=0)
    for number in range(rounds):
        for each, science in zip(chosen, sciences, strict=True):
            seeds = each.part.seeds or ()
            if number < len(seeds):
                yield planned(each.spec.model_copy(update={"seed": seeds[number]}), science)


def _settings(part: Part) -> dict[str, Any]:
    steps = {} if part.steps is None else {"trainer.steps": part.steps}
    return steps | part.overrides


def _named(spec: RunSpec, part: Part, point: Point) -> RunSpec:
    label = part.labels.get(spec.arm.name, spec.arm.label)
    if not point and label == spec.arm.label:
        return spec
    shown = f"{label} [{point_label(point)}]" if point else label
    return spec.model_copy(update={"arm": spec.arm.model_copy(update={"label": shown, "point": point})})


def _check_still_distinct(chosen: Sequence[Variant], profile: str, overrides: Sequence[str]) -> None:
    """Raise `ConfigError` when overrides take away what tells two arms apart: one would carry the other's numbers."""
    if not overrides:
        return
    arm_of: dict[tuple[str, int], str] = {}
    for each in chosen:
        arm = each.spec.arm.name
        key = (science_text(each.spec), id(each.part))
        other = arm_of.setdefault(key, arm)
        if other != arm and family(compose_run(other, profile)) != family(compose_run(arm, profile)):
            raise ConfigError(
                f"with {' '.join(overrides)} arm {arm!r} is the same as {other!r}: the override sets what tells them "
                "apart; leave it out, or name one of the two in arms=[...]."
            )


def _check_no_axis(sweep: Sweep, point: Point, overrides: Sequence[str]) -> None:
    for text in overrides:
        key = check_override(text)[0]
        if any(key == axis or key.startswith(f"{axis}.") or axis.startswith(f"{key}.") for axis in point):
            raise ConfigError(f"{text!r}: {key} is an axis of sweep {sweep.name}; change it in the sweep's file.")


def _with_own(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A sweep's values with one of its own keys set, for all of its parts."""
    changed = {**values, key: value}
    parts = values.get("parts")
    if key in PART_KEYS and isinstance(parts, list):
        changed["parts"] = [
            {name: held for name, held in part.items() if name != key} if isinstance(part, dict) else part
            for part in parts
        ]
    return changed


def _read(text: str, value: str) -> Any:
    if not value:
        raise ConfigError(f"{text!r}: it has no value; write {text}VALUE, such as seeds=[1] or profile=nano.")
    try:
        return parse_yaml(value)
    except yaml.YAMLError:
        raise ConfigError(
            f"{text!r}: its value cannot be read; write lists as [1, 2], and quote text with signs in it."
        ) from None
