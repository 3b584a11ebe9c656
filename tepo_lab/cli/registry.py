"""Commands that show what can be run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tepo_lab.cli.common import (
    ListFormat,
    Overrides,
    app,
    console_of,
    print_json,
    resolved_arm,
)

if TYPE_CHECKING:
    pass


class Kind(StrEnum):
    """What can be listed."""

    arms = "arms"
    sweeps = "sweeps"
    profiles = "profiles"
    tables = "tables"
    figures = "figures"


@app.command("ls")
def list_registry(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; everything when left out.")] = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """List arms, sweeps, profiles, tables and figures."""
    from tepo_lab.execute.listing import registry_listing, registry_tables

    listing = registry_listing([kind.value] if kind else [each.value for each in Kind])
    if format is ListFormat.json:
        print_json(listing)
    else:
        for table in registry_tables(listing):
            console_of().print(table)


@app.command()
def show(
    arm: Annotated[str, typer.Argument(help="An arm's name.")],
    overrides: Overrides = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """Print an arm's resolved configuration, each value with its source."""
    from tepo_lab.execute.listing import arm_table

    spec = resolved_arm(arm, overrides)
    if format is ListFormat.json:
        print_json(spec.model_dump(mode="json"))
    else:
        console_of().print(arm_table(spec))


@app.command()
def diff(
    left: Annotated[str, typer.Argument(help="An arm's name.")],
    right: Annotated[str, typer.Argument(help="Another arm's name.")],
    overrides: Overrides = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """Print what differs between two arms' resolved configurations."""
    from tepo_lab.execute.listing import difference_table
    from tepo_lab.registry.difference import difference

    found = difference(resolved_arm(left, overrides), resolved_arm(right, overrides))
    if format is ListFormat.json:
        print_json({key: {left: pair[0], right: pair[1]} for key, pair in found.items()})
    else:
        console_of().print(difference_table(left, right, found))


class SchemaKind(StrEnum):
    """A kind of YAML file."""

    sweep = "sweep"
    arm = "arm"
    profile = "profile"
    report = "report"
    figure = "figure"


@app.command()
def schema(kind: Annotated[SchemaKind, typer.Argument(help="The kind of YAML file.")]) -> None:
    """Print the JSON Schema of a kind of YAML file, for editors."""
    from tepo_lab.registry.json_schema import json_schema

    print_json(json_schema(kind.value))
