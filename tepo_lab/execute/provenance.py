"""What a run was made with: source tree, versions, hardware, model and data, command and seeds."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.schema.digest import file_sha256
from tepo_lab.schema.inputs import input_files
from tepo_lab.schema.profile import ChainData, DatasetData, ModelSpec
from tepo_lab.schema.record import write_whole
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.tables import local_files

#: Distributions whose versions can change a number.
_DISTRIBUTIONS = (
    "tepo-lab",
    "torch",
    "transformers",
    "tokenizers",
    "ray",
    "numpy",
    "pyarrow",
    "datasets",
    "math-verify",
    "vllm",
)

#: Environment variables that can change a number.
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF")

#: Bounds on what is looked at: a working tree may hold data sets and models.
MAX_PATCH_BYTES = 5_000_000
MAX_UNTRACKED_FILES = 200
MAX_UNTRACKED_BYTES = 1_000_000
MAX_HASHED_BYTES = 4_000_000_000


def provenance(home: Path, spec: RunSpec) -> dict[str, Any]:
    """What a run is made with, as plain values for its run.json.

    commit and dirty (None outside a checkout; dirty: tracked files differ), diff (SHA-256 of the patch, whose text is
    kept once as HOME/provenance/<first 16 digits>.patch), untracked (names and hashes, bounded), versions, hardware of
    the machine that plans, command without passwords, environment, model and data identities, seeds.
    """
    source, patch = _source_of(Path(__file__).resolve().parents[2])
    if patch is not None:
        _keep_patch(home, str(source["diff"]), patch)
    return {
        **source,
        "versions": {"python": platform.python_version()} | _versions(),
        "hardware": hardware(),
        "command": command(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "model": model_identity(spec.model),
        "data": data_identity(spec),
        "seeds": {"run": spec.seed, "suite": spec.suite.seed},
    }


def patch_file(home: Path, digest: str) -> Path:
    """Where the text of a patch lies, by its SHA-256. Raises `RecordError` for what is none, such as a path."""
    if not re.fullmatch(r"[0-9a-f]{16,64}", digest):
        raise RecordError(f"a run.json in {home} names {digest!r} as the SHA-256 of a patch: remove that run's folder.")
    return home / "provenance" / f"{digest[:16]}.patch"


def _keep_patch(home: Path, digest: str, patch: bytes) -> None:
    path = patch_file(home, digest)
    if not path.exists():
        write_whole(path, patch)


@cache
def _source_of(root: Path) -> tuple[dict[str, Any], bytes | None]:
    """Commit and state of a checkout, and the patch of its tracked files when they differ from the commit."""
    unknown = {"commit": None, "dirty": None}
    if not (root / ".git").exists() or shutil.which("git") is None:
        return unknown, None
    try:
        commit = _git(root, "rev-parse", "HEAD").decode().strip()
        patch = _git(root, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary")
        names = _git(root, "ls-files", "--others", "--exclude-standard", "-z").decode(errors="replace").split("\0")
    except (OSError, subprocess.SubprocessError):
        return unknown, None
    found: dict[str, Any] = {"commit": commit, "dirty": bool(patch)}
    if patch:
        found["diff"] = hashlib.sha256(patch).hexdigest()
    untracked = sorted(name for name in names if name)
    if untracked:
        found["untracked"] = {
            "count": len(untracked),
            "files": {name: _file_identity(root / name) for name in untracked[:MAX_UNTRACKED_FILES]},
        }
    return found, patch if patch and len(patch) <= MAX_PATCH_BYTES else None


def _file_identity(path: Path) -> str | None:
    """SHA-256 of a small file; None for a large one, or one that is no file (any more)."""
    try:
        is_small = path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_UNTRACKED_BYTES
        return file_sha256(path) if is_small else None
    except OSError:
        return None


def _git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=20).stdout


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def hardware() -> dict[str, Any]:
    """Architecture, system, processor, cores, memory in GB, and the names of the NVIDIA GPUs."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": _first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$"),
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpus": _gpus(),
    }


def _first_match(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def command() -> list[str]:
    """The command line, without the passwords that addresses in it may hold."""
    return [Path(sys.argv[0]).name, *(re.sub(r"(://[^/@\s:]*):[^/@\s]*@", r"\1:***@", each) for each in sys.argv[1:])]


def model_identity(spec: ModelSpec) -> dict[str, Any]:
    """Which model a run begins with: path, revision, and SHA-256 of its files (weights, settings, tokenizer) here."""
    found: dict[str, Any] = {"path": spec.path, "revision": spec.revision}
    if spec.folder.is_dir():
        weights = [*spec.folder.glob("*.safetensors")] or [*spec.folder.glob("pytorch_model*.bin")]
        others = [each for pattern in ("*.json", "*.jinja", "tokenizer.model") for each in spec.folder.glob(pattern)]
        found["sha256"] = _hashes(sorted(each for each in (*weights, *others) if each.is_file()))
    return found


def data_identity(spec: RunSpec) -> dict[str, Any]:
    """Which problems a run is trained on and evaluated with: generator, hub revision, or SHA-256 of local files."""
    benchmarks = {name: _data(benchmark.data) for name, benchmark in spec.suite.benchmarks.items()}
    return {"training": _data(spec.data) if spec.arm.trained else None, "benchmarks": benchmarks}


def _data(data: ChainData | DatasetData) -> dict[str, Any]:
    if isinstance(data, ChainData):
        return {"generator": "chain", "split": data.split, "seed": data.seed}
    if data.path is None:
        return {"hub": data.hub, "revision": data.revision, "subset": data.subset, "split": data.split}
    return {"path": data.path, "sha256": _hashes(local_files(data))}


def changed_inputs(recorded: Mapping[str, Any], spec: RunSpec) -> list[str]:
    """Which of a run's model, training data and benchmarks have local files other than its provenance `recorded`.

    A file counts when its hash is known then and now. A model with a declared hash is checked before it is used.
    """
    model = model_identity(spec.model) if spec.model.sha256 is None else None
    then = {what: dict(files) for what, files in input_files(recorded).items()}
    now = input_files({"model": model, "data": data_identity(spec)})
    return [
        what
        for what, files in now.items()
        if any(then.get(what, {}).get(name, digest) != digest for name, digest in files)
    ]


def _hashes(files: list[Path]) -> dict[str, str | None]:
    """SHA-256 by file name; None for each where they are too large to be read for this."""
    stats = [path.stat() for path in files]
    too_large = sum(stat.st_size for stat in stats) > MAX_HASHED_BYTES
    return {
        path.name: None if too_large else _known_sha256(path, stat.st_size, stat.st_mtime_ns)
        for path, stat in zip(files, stats, strict=True)
    }


@cache
def _known_sha256(path: Path, size: int, changed: int) -> str:
    """A file's SHA-256, reckoned once for each of its states: `size` in bytes, `changed` in nanoseconds."""
    return file_sha256(path)
