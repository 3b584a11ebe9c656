"""Where the registry's YAML files lie: the package's own, and a user's beside them."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from tepo_lab.errors import ConfigError, nearest

Kind = Literal["experiments", "sweeps", "reports"]

#: A user's own registry: a folder that holds any of experiments/, sweeps/ and reports/.
REGISTRY_VARIABLE = "TEPO_LAB_REGISTRY"

#: A configuration file is written by hand; one larger than this is something else.
MAX_YAML_BYTES = 1_000_000

#: More values than a file of that size holds without aliases.
MAX_VALUES = 1_000_000

#: Python itself goes no deeper than 1,000.
MAX_DEPTH = 1_000


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.2 where 1.1 surprises: 5e-7 is a number, only true and false are truth values, and no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                raise _problem("merge keys (<<) are not read; write the keys out", key.start_mark)
            value = self.construct_object(key, deep=True)
            if not isinstance(value, str | int | float | bool | None):
                raise _problem("a key must be plain text", key.start_mark)
            if value in seen:
                raise _problem(f"the key {value!r} stands twice", key.start_mark)
            seen.add(value)
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values

    def construct_undefined(self, node: yaml.Node) -> Any:
        raise _problem(f"the tag {node.tag!r} is not read; write a plain value", node.start_mark)


_MERGE = "tag:yaml.org,2002:merge"


def _problem(problem: str, mark: yaml.Mark | None = None) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=mark)


#: Kinds of values that a configuration has; sets, dates and bytes are none of them.
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_Loader.yaml_constructors = {
    **{f"tag:yaml.org,2002:{kind}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"] for kind in _KINDS},
    None: _Loader.construct_undefined,
}


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|false|True|False"), list("tfTF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*([eE][-+]?\d+)?|\.(inf|nan))"),
    list("-+0123456789."),
)


@cache
def package_root() -> Path:
    """The folder that holds experiments/, sweeps/ and reports/: the checkout's root, or a folder in the wheel."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_registry"
    return installed if installed.is_dir() else package.parent


def roots(kind: Kind) -> list[Path]:
    """Folders searched for `kind`, a user's before the package's."""
    user = os.environ.get(REGISTRY_VARIABLE)
    if user and not Path(user).is_dir():
        raise ConfigError(f"{REGISTRY_VARIABLE}={user} is not a folder: point it at one that holds experiments/.")
    own = [Path(user).resolve() / kind] if user else []
    return [root for root in [*own, package_root() / kind] if root.is_dir()]


def names(kind: Kind, group: str = "") -> list[str]:
    """Names of the YAML files of a kind (or of a group within experiments), sorted."""
    found = {path.stem for root in roots(kind) for path in (root / group).glob("*.yaml")}
    return sorted(found)


def find(kind: Kind, name: str, group: str = "") -> Path:
    """The YAML file called `name`. Raises `ConfigError` with the nearest known name."""
    for root in roots(kind):
        path = root / group / f"{name}.yaml"
        try:
            if path.is_file() and path.parent == root / group:
                return path
        except OSError:
            # A name too long for a file is no file's.
            continue
    what = {"sweeps": "sweep", "reports": "report"}.get(kind, group)
    raise ConfigError(f"unknown {what} {name!r}.{nearest(name, names(kind, group))}")


def find_named(kind: Kind, name: str, group: str = "", *, where: str) -> Path:
    """As `find`, for a name that stands in the file (or argument) `where`, which the error names."""
    try:
        return find(kind, name, group)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def parse_yaml(text: str) -> Any:
    """Plain values from YAML. Raises `yaml.YAMLError`, also for aliases that make a small text hold very much."""
    try:
        _check_depth(text)
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader: plain values only
        count = _count(values, {})
    except RecursionError:
        raise _problem("nested too deeply, or an alias stands within its own anchor") from None
    except ValueError as error:
        raise _problem(str(error).partition(";")[0]) from None
    if count > MAX_VALUES:
        raise _problem(f"its aliases stand for {count:,} values; write them out")
    return values


def _check_depth(text: str) -> None:
    """Raise `RecursionError` for a text nested so deeply that the C parser would run out of stack."""
    if len(text) <= MAX_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecursionError


def _count(node: Any, known: dict[int, int]) -> int:
    """Values in a tree, those of an alias at each of its places; each is looked at once."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in known:
        members = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_count(each, known) for each in members)
    return known[id(node)]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `ConfigError` that names the file and, for bad syntax, the line."""
    try:
        if path.stat().st_size > MAX_YAML_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_YAML_BYTES} bytes, which no configuration file is.")
        if not path.is_file():
            raise FileNotFoundError if not path.exists() else IsADirectoryError("not a file")
        values = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: cannot be read: not UTF-8 text (at byte {error.start}); save it as UTF-8."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read ({reason}); name a YAML file.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_place(error)}: not YAML: {_reason(error)}.") from None
    if not isinstance(values, dict):
        what = {list: "a list", type(None): "an empty file"}.get(type(values), "a single value")
        raise ConfigError(f"{path}: must hold a mapping (key: value), not {what}.")
    return values


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _reason(error: yaml.YAMLError) -> str:
    """What is wrong, in one phrase; a mistake of the reader's has other words than one of the parser's."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"at position {error.position} stands a character that text cannot have"
    problem = getattr(error, "problem", None) or "cannot be parsed"
    if "cannot start any token" in problem:
        return f"{problem} (tabs cannot indent; quote text that begins with a sign)"
    return str(problem).removeprefix("but ")
