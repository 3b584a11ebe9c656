"""The registry's YAML files, the package's and a user's: finding them by name, and reading them."""

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

#: Limits on a YAML text, against files that are something else and aliases that repeat each other.
MAX_YAML_BYTES = 1_000_000
MAX_YAML_VALUES = 1_000_000
MAX_YAML_DEPTH = 1_000

_SURROGATE = re.compile("[\ud800-\udfff]")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader of YAML 1.1 with the surprises removed: 5e-7 is a number, `off` and 2026-01-01 are text, and a
    key that stands twice is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise _error(f"the key {key.value!r} stands twice", key.start_mark)
            seen.add((key.tag, key.value))
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values


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


def _error(problem: str, mark: yaml.Mark | None = None) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=mark)


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
    return sorted({path.stem for root in roots(kind) for path in (root / group).glob("*.yaml")})


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
    """As `find`, for a name in the file (or argument) `where`, which the error names."""
    try:
        return find(kind, name, group)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def parse_yaml(text: str) -> Any:
    """Plain values from YAML: mappings, lists, text, numbers, true, false and null. Raises `yaml.YAMLError`."""
    depth = 0
    # The C parser would run out of stack. A text without so many characters cannot nest so deeply.
    for event in yaml.parse(text, Loader=_Loader) if len(text) > MAX_YAML_DEPTH else ():
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise _error("nested too deeply")
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader: plain values only
    except RecursionError:
        raise _error("nested too deeply") from None
    except ValueError as error:
        raise _error(str(error).partition(";")[0]) from None
    pending, count = [values], 0
    while pending:
        node = pending.pop()
        count += 1
        if count > MAX_YAML_VALUES:
            raise _error(f"it has, with its aliases, more than {MAX_YAML_VALUES:,} values; write them out")
        if isinstance(node, dict):
            pending += [*node, *node.values()]
        elif isinstance(node, list):
            pending += node
        elif isinstance(node, str) and _SURROGATE.search(node):
            raise _error("a text has half of a surrogate pair, which is no character; write the character itself")
        elif not isinstance(node, str | int | float | bool | None):
            raise _error(f"a value is of the kind {type(node).__name__}; write text, numbers, lists or mappings")
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `ConfigError` that names the file and, for bad syntax, the line."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: not a file; name a YAML file.")
        if path.stat().st_size > MAX_YAML_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_YAML_BYTES} bytes, which no configuration file is.")
        values = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (at byte {error.start}); save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise ConfigError(f"{path}: {reason}; name a YAML file.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        hint = " (tabs cannot indent; quote text that begins with a sign)" if "start any token" in reason else ""
        raise ConfigError(f"{path}{line}: not YAML: {' '.join(reason.split())}{hint}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold a mapping (key: value), not {type(values).__name__}.")
    return values
