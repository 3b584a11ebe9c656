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


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.2 where 1.1 surprises: 5e-7 is a number, only true and false are truth values, and no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for (key, _), value in zip(node.value, keys, strict=True):
            if not isinstance(value, str | int | float | bool | None):
                raise yaml.constructor.ConstructorError(problem="a key must be plain text", problem_mark=key.start_mark)
            if keys.count(value) > 1:
                problem = f"the key {value!r} stands twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
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
        if path.is_file() and path.parent == root / group:
            return path
    what = {"sweeps": "sweep", "reports": "report"}.get(kind, group)
    raise ConfigError(f"unknown {what} {name!r}.{nearest(name, names(kind, group))}")


def parse_yaml(text: str) -> Any:
    """Plain values from YAML. Raises `yaml.YAMLError`."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader, which makes plain values only


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `ConfigError` that names the file and, for bad syntax, the line."""
    try:
        if path.stat().st_size > MAX_YAML_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_YAML_BYTES} bytes, which no configuration file is.")
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}).") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(
            f"{path}{place}: not YAML: {getattr(error, 'problem', None) or 'cannot be parsed'}."
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold a mapping (key: value), not {type(values).__name__}.")
    return values
