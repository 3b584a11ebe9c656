"""Commands that show what can be run."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import typer

from tepo_lab.cli.common import (
    Arm,
    Format,
    ListFormat,
    Overrides,
    app,
    complete_arms,
    console_of,
    examples,
    print_json,
    print_note,
    resolved_arm,
)

#: What can be listed.
ListedKind = Literal["arms", "sweeps", "profiles", "tables", "figures"]


@app.command(
    "ls",
    epilog=examples(
        "ls",
        "ls sweeps",
        json="an object with a list for each kind; of each entry its name, title or label, and what the table shows.",
    ),
)
def list_registry(
    kind: Annotated[ListedKind | None, typer.Argument(help="What to list; everything when left out.")] = None,
    format: Format = ListFormat.text,
) -> None:
    """List arms, sweeps, profiles, tables and figures."""
    from tepo_lab.execute.showing.listing import registry_listing, registry_tables

    listing = registry_listing([kind] if kind else get_args(ListedKind))
    if format is ListFormat.json:
        print_json(listing)
    else:
        for table in registry_tables(listing):
            console_of().print(table)


@app.command(
    epilog=examples(
        "show tepo",
        "show tepo profile=qwen2.5-7b",
        json="the resolved run, section by section (arm with its sources, objective, model, data, ...).",
    )
)
def show(
    arm: Arm,
    overrides: Overrides = None,
    format: Format = ListFormat.text,
) -> None:
    """Print an arm's resolved values, each with its source."""
    from tepo_lab.execute.showing.listing import arm_table
    from tepo_lab.registry.compose import unsourced_notes

    spec = resolved_arm(arm, overrides)
    notes = unsourced_notes([arm])
    if format is ListFormat.json:
        print_json(spec.model_dump(mode="json"))
        return
    console_of().print(arm_table(spec))
    for note in notes:
        print_note(note)


@app.command(
    epilog=examples(
        "diff tepo gspo",
        json="an object: for each key that differs, the values by the arms' names; null where an arm has no such key.",
    )
)
def diff(
    left: Arm,
    right: Annotated[str, typer.Argument(help="Another arm's name.", autocompletion=complete_arms)],
    overrides: Overrides = None,
    format: Format = ListFormat.text,
) -> None:
    """Print what differs between two arms."""
    from tepo_lab.execute.showing.listing import difference_table
    from tepo_lab.registry.difference import read_difference

    found = read_difference(resolved_arm(left, overrides), resolved_arm(right, overrides))
    if format is ListFormat.json:
        print_json({key: {left: pair[0], right: pair[1]} for key, pair in found.items()})
    else:
        console_of().print(difference_table(left, right, found))


@app.command(epilog=examples("schema sweep > sweep.schema.json"))
def schema(
    kind: Annotated[
        Literal["sweep", "arm", "profile", "report", "figure"], typer.Argument(help="The kind of YAML file.")
    ],
) -> None:
    """Print the JSON Schema of a kind of YAML file, for editors.

    An editor with YAML support completes and checks a file that begins with

    \b
      # yaml-language-server: $schema=sweep.schema.json
    """
    from tepo_lab.registry.json_schema import json_schema

    print_json(json_schema(kind))
