"""Commands about problems, grades and models."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo_lab.cli.common import (
    HOME,
    Home,
    ListFormat,
    Overrides,
    app,
    data_app,
    model_app,
    print_json,
    resolved_arm,
)
from tepo_lab.errors import ConfigError

if TYPE_CHECKING:
    pass


class AnswerForm(StrEnum):
    """Where an answer is looked for."""

    either = "either"
    boxed = "boxed"
    answer_line = "answer_line"


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(help="JSON lines with `text` (a response) and `answer` (the gold answer).")],
    form: Annotated[AnswerForm, typer.Option(help="The last box, the last line 'Answer: ...', or either.")] = (
        AnswerForm.either
    ),
) -> None:
    """Grade responses: prints, in order, lines with correct, extracted and how (exact, symbolic, timeout, none)."""
    from tepo_lab.evaluate.lines import grade_lines

    for line in grade_lines(file, form.value):
        typer.echo(line)


@app.command()
def regrade(
    runs: Annotated[list[str] | None, typer.Argument(help="Names of runs, or starts of them; else all.")] = None,
    home: Home = HOME,
) -> None:
    """Grade recorded generations again, without generating."""
    from tepo_lab.evaluate.regrade import named_folders
    from tepo_lab.evaluate.regrade import regrade as regrade_run
    from tepo_lab.execute.lease import Lease

    changed = 0
    for folder in named_folders(home, runs or []):
        with Lease(folder):
            result = regrade_run(folder)
        changed += result.changed
        typer.echo(f"{result.run}: {result.generations} generations, {result.changed} grades changed")
    if changed:
        typer.echo("Tables show the new grades; tepo-lab mirror --rebuild brings them to MLflow.", err=True)


@data_app.command("check")
def check_data(
    overrides: Overrides = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """Report repeated problems, conflicting answers, and training problems that stand in a benchmark."""
    from tepo_lab.tasks.overlap import check_data as check

    spec = resolved_arm("base", overrides)
    reports = check(spec.data, spec.suite)
    if format is ListFormat.json:
        print_json([each.as_json() for each in reports])
    else:
        typer.echo("\n".join(line for each in reports for line in each.lines()))
    if any(each.error for each in reports):
        raise typer.Exit(1)


@model_app.command("build-nano")
def build_nano_model(
    out: Annotated[Path, typer.Argument(help="Folder to write the checkpoint to; must not exist.")],
) -> None:
    """Make the embedded base model again from its recipe (minutes on one core)."""
    from tepo_lab.train.nano import NanoRecipe, build_nano

    if out.exists():
        raise ConfigError(f"{out} exists: name a folder that does not, so that nothing is overwritten.")
    build_nano(out, NanoRecipe(), on_progress=lambda line: typer.echo(line, err=True))
    typer.echo(f"Checkpoint: {out.resolve()}")
