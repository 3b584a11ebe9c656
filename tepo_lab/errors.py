"""Errors that a user can cause, each one clear line: what is wrong, where, and how to mend it.

Everything that derives from `TepoLabError` is printed by the command line as one line with exit code 2;
anything else is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TepoLabError(Exception):
    """What is wrong, where, and the mend, in one line."""


class ConfigError(TepoLabError):
    """A configuration (YAML, override, arm, sweep, profile) says something that cannot be used."""


class ObjectiveError(TepoLabError):
    """An objective names an unknown choice, or was not given what a choice needs."""


class DataError(TepoLabError):
    """A data set or benchmark is missing, empty, or not what its declaration says."""


class ModelError(TepoLabError):
    """A model or checkpoint cannot be loaded or is not the one that was declared."""


class RecordError(TepoLabError):
    """A record on disk is missing, damaged, or belongs to something else."""


class ResourceError(TepoLabError):
    """The machine or the cluster lacks what a run asks for."""


class MachineError(ResourceError):
    """What is lacking may be there later, such as memory that others hold: the run is tried again."""


#: Names listed where none is near; the rest are counted.
LISTED = 20


def nearest(name: str, known: Iterable[str]) -> str:
    """The mend for an unknown name: the nearest known one, or the list of all.

    Returns a clause that begins with a space, ready to be appended to a message.
    """
    choices = sorted({str(choice) for choice in known})
    # Half of the letters in common; a name of one or two letters has that with too many.
    close = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5) if len(str(name)) > 2 else []
    if close:
        return f" Did you mean {close[0]!r}?"
    more = f" and {len(choices) - LISTED} more" if len(choices) > LISTED else ""
    return f" Known: {', '.join(choices[:LISTED])}{more}." if choices else ""
