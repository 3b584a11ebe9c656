"""From a sweep's name or file to its runs, each with its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import PrivateAttr

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.compose import SETTABLE, SHORT_KEYS, arm_file, compose_run, split_override, unsourced_notes
from tepo_lab.registry.difference import check_against_parent
from tepo_lab.registry.locations import find, find_named, names, parse_yaml, read_yaml
from tepo_lab.registry.values import flatten
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.step_metrics import STEP_METRICS
from tepo_lab.schema.sweep import Sweep, SweepPart

#: Raised when what is hashed changes; a home may then hold runs of several versions, each under its own id.
IDENTITY_VERSION = 1

#: Keys that an override sets on the sweep itself; all others are set on every run's configuration.
SWEEP_KEYS = frozenset(Sweep.model_fields.keys() - {"name", "title", "overrides", "profiles"}) | {"profile"}

#: Sweep keys that a part may set too: an override of theirs holds for all parts.
PART_KEYS = frozenset({"seeds", "steps"})

#: Sweep keys that hold values of its runs.
_VALUE_KEYS = ("steps", "axes", "points", "parts")

#: The untrained model is evaluated once, whatever the seeds of the trained runs.
BASE_ARM, BASE_SEED = "base", 0


class _ReadSweep(Sweep):
    """A sweep that knows its file, and the overrides of its values, to name them where a value fits no run."""

    _place: str = PrivateAttr(default="")


@dataclass(frozen=True)
class PlannedRun:
    """A resolved run with its identity. `fields`: its identity fields as canonical JSON, which all seeds share."""

    spec: RunSpec
    fields: str

    @cached_property
    def family(self) -> str:
        """The identity of the run without its seed: 12 hex digits, equal for all seeds of an arm on a profile."""
        return self._digest("")

    @cached_property
    def run_id(self) -> str:
        """The identity of the run: 12 hex digits."""
        return self._digest(f'"seed":{self.spec.seed},')

    @property
    def folder(self) -> str:
        """The run's folder in the home, readable and unique: arm, profile, seed, and the start of its id."""
        return f"{self.spec.arm.name}-{self.spec.profile.name}-s{self.spec.seed}-{self.run_id[:8]}"

    def with_seed(self, seed: int) -> PlannedRun:
        """The run of another seed."""
        return PlannedRun(self.spec.model_copy(update={"seed": seed}), self.fields)

    def _digest(self, seed: str) -> str:
        # The key "science" is part of every identity given out so far.
        text = f'{{"science":{self.fields},{seed}"version":{IDENTITY_VERSION}}}'
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def planned(spec: RunSpec) -> PlannedRun:
    """A run with its identity: a hash of `RunSpec.identity_fields` and the seed."""
    return PlannedRun(spec, json.dumps(spec.identity_fields(), sort_keys=True, separators=(",", ":"), allow_nan=False))


@dataclass(frozen=True)
class Expansion:
    """A sweep with its runs in the order they are started."""

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    overrides: tuple[str, ...] = field(default=())

    @property
    def notes(self) -> list[str]:
        """Values of a user's arms for which no source is given."""
        return unsourced_notes(arm for arm in self.sweep.all_arms if arm_file(arm).trained)


@dataclass(frozen=True)
class Variant:
    """An arm at one point of a part of a sweep, for all of the part's seeds. `run` has the first."""

    run: PlannedRun
    part: SweepPart


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
    parts = values.get("parts")
    for block in [values, *(parts if isinstance(parts, list) else [])]:
        for key, value in block.items() if isinstance(block, dict) else ():
            if str(key).partition(".")[0] in SETTABLE - {"profile"}:
                inner = next(iter(flatten({key: value})))
                raise ConfigError(f"{path}: {key!r} is set on the runs: write overrides: {{{inner}: ...}}.")
    own: dict[str, str] = {}
    rest = []
    for text in overrides:
        key, value = split_override(text)
        if key in SWEEP_KEYS:
            values = _with_own(values, key, _parse_own(text, value))
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


def _parse_own(text: str, value: str) -> Any:
    """The value of an override of the sweep's own."""
    if not value:
        raise ConfigError(f"{text!r}: it has no value; write {text}VALUE, such as seeds=[1] or profile=nano.")
    try:
        return parse_yaml(value)
    except yaml.YAMLError:
        raise ConfigError(
            f"{text!r}: its value cannot be read; write lists as [1, 2], and quote text with signs in it."
        ) from None


def _with_own(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A sweep's values with one of its own keys set, for all of its parts."""
    changed = {**values, key: value}
    if key in PART_KEYS and isinstance(values.get("parts"), list):
        changed["parts"] = [
            {name: content for name, content in part.items() if name != key} if isinstance(part, dict) else part
            for part in values["parts"]
        ]
    return changed


def _check_known(text: str, key: str, value: str) -> None:
    """Raise `ConfigError` for an override of a key that is neither a sweep's nor a run's."""
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
    have, or a stop rule on what no step records, which would never hold.

    Args: `own` are the overrides of the sweep's keys, which messages name in place of the file `where`.
    """
    for name in sweep.profiles:
        find_named("experiments", name, "profile", where=own.get("profile", where))
    for part in (sweep, *sweep.parts):
        for arm in part.arms:
            find_named("experiments", arm, "arm", where=own.get("arms" if part is sweep else "parts", where))
        for arm in part.labels:
            if arm not in part.arms and "arms" not in own:
                hint = nearest(arm, part.arms)
                raise ConfigError(f"{own.get('labels', where)}: labels: there is no arm {arm!r} beside it.{hint}")
    for rule in sweep.stop:
        if rule.metric not in STEP_METRICS:
            hint = nearest(rule.metric, STEP_METRICS)
            raise ConfigError(f"{own.get('stop', where)}: stop: no step records {rule.metric!r}.{hint}")
    for name in sweep.feeds:
        known = [*names("reports"), *names("reports", "figures")]
        if name not in known:
            raise ConfigError(f"{own.get('feeds', where)}: feeds: unknown table {name!r}.{nearest(name, known)}")


def expand(sweep: Sweep, overrides: Sequence[str] = ()) -> Expansion:
    """The runs of a sweep: for each profile the untrained model, then one seed of every arm before the second of any.

    Raises `ConfigError` for an unknown arm or profile, an arm that differs from its parent outside `varies`, or an
    override of a key that is an axis.
    """
    runs: dict[str, PlannedRun] = {}
    unsourced_notes(sweep.all_arms)
    for profile in sweep.profiles:
        chosen = variants(sweep, profile, overrides)
        trained = [variant for variant in chosen if variant.run.spec.arm.trained]
        for arm in dict.fromkeys(variant.run.spec.arm.name for variant in trained):
            check_against_parent(arm, profile)
        if sweep.base or len(trained) < len(chosen):
            merge(runs, [planned(base_run(sweep, profile, overrides))])
        merge(runs, _in_rounds(trained))
    return Expansion(sweep, tuple(runs.values()), tuple(overrides))


def variants(sweep: Sweep, profile: str, overrides: Sequence[str] = ()) -> list[Variant]:
    """Every arm of a sweep at every one of its points, on one profile, in order. Raises as `expand`."""
    chosen: list[Variant] = []
    for part in sweep.blocks:
        steps = {} if part.steps is None else {"trainer.steps": part.steps}
        for point in part.all_points():
            for text in overrides:
                key = split_override(text)[0]
                if any(key == axis or key.startswith(f"{axis}.") or axis.startswith(f"{key}.") for axis in point):
                    raise ConfigError(f"{text!r}: {key} is an axis of sweep {sweep.name}; change it in the file.")
            for arm in part.arms:
                trained = arm_file(arm).trained
                seed = (part.seeds or sweep.seeds)[0] if trained else BASE_SEED
                spec = _compose(sweep, arm, profile, overrides, seed, steps | part.overrides | point)
                if trained:
                    label = part.labels.get(arm, spec.arm.label) + (f" [{point_label(point)}]" if point else "")
                    spec = spec.model_copy(update={"arm": spec.arm.model_copy(update={"label": label, "point": point})})
                chosen.append(Variant(planned(spec), part))
    if overrides:
        _check_still_distinct([each for each in chosen if each.run.spec.arm.trained], profile, overrides)
    return chosen


def base_run(sweep: Sweep, profile: str, overrides: Sequence[str] = ()) -> RunSpec:
    """The evaluation of the untrained model that belongs to a sweep's runs on a profile."""
    # An untrained model has no objective that an override could change.
    fitting = [text for text in overrides if not split_override(text)[0].startswith("objective.")]
    return _compose(sweep, BASE_ARM, profile, fitting, BASE_SEED, sweep.overrides)


def _compose(
    sweep: Sweep, arm: str, profile: str, overrides: Sequence[str], seed: int, settings: Mapping[str, Any]
) -> RunSpec:
    """`compose_run`; an error in the sweep's own values names the sweep's file."""
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


def _check_still_distinct(chosen: Sequence[Variant], profile: str, overrides: Sequence[str]) -> None:
    """Raise `ConfigError` when overrides remove the difference of two arms: one would carry the other's numbers."""
    arm_of: dict[tuple[str, int], str] = {}
    for variant in chosen:
        arm = variant.run.spec.arm.name
        other = arm_of.setdefault((variant.run.family, id(variant.part)), arm)
        if other != arm and planned(compose_run(other, profile)).fields != planned(compose_run(arm, profile)).fields:
            raise ConfigError(
                f"with {' '.join(overrides)} arm {arm!r} is the same as {other!r}: the override sets their only "
                "difference; leave it out, or name one of the two in arms=[...]."
            )


def _in_rounds(chosen: Sequence[Variant]) -> Iterator[PlannedRun]:
    rounds = max((len(variant.part.seeds or ()) for variant in chosen), default=0)
    for number in range(rounds):
        for variant in chosen:
            seeds = variant.part.seeds or ()
            if number < len(seeds):
                yield variant.run.with_seed(seeds[number])


def merge(found: dict[str, PlannedRun], runs: Iterable[PlannedRun]) -> None:
    """Add runs to `found`, each once: the same run asked for twice goes to the further step, and is evaluated wherever
    either asks."""
    for run in runs:
        first = found.setdefault(run.run_id, run)
        if first is run:
            continue
        longer = run if run.spec.steps > first.spec.steps else first
        asked = sorted({*first.spec.evaluation_steps, *run.spec.evaluation_steps} - {longer.spec.steps})
        if longer.spec.arm.trained:
            trainer = longer.spec.trainer.model_copy(update={"evaluate_at": tuple(asked)})
            longer = PlannedRun(longer.spec.model_copy(update={"trainer": trainer}), longer.fields)
        found[run.run_id] = longer


def point_label(point: Mapping[str, Any]) -> str:
    """A point in words, such as `coef=0.1, estimator=k1`: the shortest ends of its keys that are unique among them."""

    def shortened(key: str) -> str:
        parts = key.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        unique = (end for end in ends if sum(f".{other}".endswith(f".{end}") for other in point) == 1)
        return next(unique, key)

    def shown(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:g}"
        if isinstance(value, Mapping):
            return str(value.get("kind") or json.dumps(value))
        if isinstance(value, list | tuple):
            return "/".join(map(shown, value))
        return "none" if value is None else str(value)

    return ", ".join(f"{shortened(key)}={shown(value)}" for key, value in point.items())
