"""`llmgw init`: what is found on a disk, what a header says, and that whatever it writes is a catalog."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw import catalog as catalogs
from llmgw.catalog import first
from llmgw.catalog.first import gguf, look
from llmgw.errors import CatalogError

GIB = 1 << 30


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(of: Any) -> bytes:
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    if isinstance(of, list):
        return struct.pack("<IIQ", 9, 4, len(of)) + b"".join(struct.pack("<I", x) for x in of)
    if isinstance(of, float):
        return struct.pack("<If", 6, of)
    return struct.pack("<II", 4, of)


def header(keys: dict[str, Any], version: int = 3) -> bytes:
    body = b"".join(text(k) + value(v) for k, v in keys.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(keys)) + body


LLAMA = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.context_length": 32768,
    "llama.block_count": 10,
    "llama.embedding_length": 1024,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
}


def weights(folder: Path, name: str, keys: dict[str, Any] | None = None, size: int = 0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header(LLAMA | (keys or {})))
    if size:
        with path.open("r+b") as file:
            file.truncate(size)
    return path


def test_a_header_says_what_the_cache_of_one_token_takes(tmp_path: Path) -> None:
    found = gguf.read(weights(tmp_path, "a.gguf", {"tokenizer.ggml.model": "gpt2"}))
    assert (found.architecture, found.name, found.trained_context) == ("llama", "Tiny", 32768)
    assert found.kv_bytes_per_token == 10 * 2 * (128 + 128) * 2, (
        "layers, heads, keys and values, two bytes"
    )


def test_layers_may_differ_in_heads_and_keys_in_width(tmp_path: Path) -> None:
    keys = {"llama.attention.head_count_kv": [2] * 5 + [0] * 5, "llama.attention.key_length": 64}
    assert gguf.read(weights(tmp_path, "a.gguf", keys)).kv_bytes_per_token == 10 * (64 + 128) * 2


@pytest.mark.parametrize(
    ("keys", "kind"),
    [({"general.architecture": "nomic-bert"}, "embed"), ({"llama.pooling_type": 4}, "rerank"),
     ({"llama.pooling_type": 1}, "embed"), ({"general.architecture": "clip"}, "projector"), ({}, "chat")],
)  # fmt: skip
def test_what_a_model_is_for(tmp_path: Path, keys: dict[str, Any], kind: str) -> None:
    assert gguf.read(weights(tmp_path, "a.gguf", keys)).kind == kind


@given(st.integers(0, 300), st.binary(max_size=40))
def test_a_broken_header_is_said_not_a_crash(tmp_path_factory: Any, cut: int, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("g") / "x.gguf"
    path.write_bytes(header(LLAMA)[:cut] + tail)
    with suppress(gguf.GgufError):
        gguf.read(path)


def test_parts_projectors_and_folders_of_the_hub(tmp_path: Path) -> None:
    for n in (1, 2):
        weights(tmp_path, f"big/big-Q4_K_M-0000{n}-of-00002.gguf", size=GIB)
    weights(tmp_path, "gone/half-00001-of-00002.gguf")
    weights(tmp_path, "eye/see-Q8_0.gguf")
    weights(tmp_path, "eye/mmproj-see.gguf", {"general.architecture": "clip"})
    hub = tmp_path / "models--Qwen--Qwen3-8B/snapshots/abc"
    hub.mkdir(parents=True)
    (hub / "config.json").write_text("{}")
    (hub / "model-00001-of-00001.safetensors").write_bytes(b"x" * 10)
    found = {w.name: w for w in look.looked([tmp_path], ()).weights}
    assert set(found) == {"big-Q4_K_M", "half", "see-Q8_0", "Qwen3-8B"}
    assert found["big-Q4_K_M"].size_bytes == 2 * GIB
    assert "half-00002-of-00002.gguf is missing" in found["half"].trouble
    assert found["see-Q8_0"].projector.endswith("mmproj-see.gguf")
    assert found["Qwen3-8B"].header is None


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def catalog_of(folder: Path, gpus: tuple[int, ...] = ()) -> Any:
    """Of a box with a llama-server."""
    server = program(folder.with_name(f"{folder.name}-bin") / "llama-server")
    box = look.looked([folder], [server.parent])
    return catalogs.load_sources({"c.yaml": first.written(box, gpus)})


def test_memory_is_the_weights_the_cache_and_a_rest(tmp_path: Path) -> None:
    weights(tmp_path, "m-Q4_K_M.gguf", size=4 * GIB)
    profile = catalog_of(tmp_path, (24 * GIB,)).models["m"].profiles[0]
    assert profile.gpus == 1
    cache = 8192 * 10 * 2 * 256 * 2
    assert 5 * GIB + cache <= profile.gpu_memory_bytes < 5 * GIB + cache + GIB // 5
    assert profile.command[-2:] == ("-ngl", "99")


def test_what_no_card_holds_gets_them_all_or_the_cpu(tmp_path: Path) -> None:
    weights(tmp_path, "m.gguf", size=30 * GIB)
    assert catalog_of(tmp_path, (24 * GIB, 24 * GIB)).models["m"].profiles[0].gpus == 2
    assert catalog_of(tmp_path, (8 * GIB,)).models["m"].profiles[0].gpus == 0
    assert catalog_of(tmp_path).models["m"].profiles[0].host_memory_bytes > 31 * GIB


def test_names_tell_two_quantisations_apart(tmp_path: Path) -> None:
    weights(tmp_path, "a/Qwen3-8B-Q4_K_M.gguf")
    weights(tmp_path, "b/Qwen3-8B-Q8_0.gguf")
    weights(tmp_path, "c/Qwen3-8B-Q8_0.gguf")
    models = catalog_of(tmp_path).models
    assert set(models) == {"qwen3-8b", "qwen3-8b-q8_0", "qwen3-8b-q8_0-2"}
    assert [m.name for m in models.values() if m.aliases == ("default",)] == ["qwen3-8b"]


def test_the_first_that_chats_is_the_default_one_unless_one_is_called_so(tmp_path: Path) -> None:
    weights(tmp_path, "a.gguf", {"general.architecture": "bert"})
    weights(tmp_path, "b.gguf")
    assert catalog_of(tmp_path).resolve("default").name == "b"
    weights(tmp_path, "default.gguf")
    assert catalog_of(tmp_path).resolve("default").name == "default"


@pytest.mark.parametrize(
    "name",
    ['we"ird $x.gguf', "-dash.gguf", "a: b #c.gguf", "${env.HOME}.gguf", "ü.gguf", "...gguf"],
)
def test_whatever_a_file_is_called_it_is_a_catalog(tmp_path: Path, name: str) -> None:
    path = weights(tmp_path, name, {"general.name": "a\nb: [", "general.architecture": "x\ty"})
    (model,) = catalog_of(tmp_path).models.values()
    assert model.profiles[0].weights["default"].replace("$$", "$") == str(path)


def to_fill_in(text: str) -> list[str]:
    """What `catalog check` says of it, which has to be on the lines that say so themselves."""
    with pytest.raises(CatalogError) as e:
        catalogs.load_sources({"c.yaml": text})
    marked = [n for n, line in enumerate(text.splitlines(), 1) if "FILL IN" in line]
    said = [int(p.split(":")[1]) for p in e.value.problems]
    assert all(any(n - 3 <= m <= n for m in marked) for n in said), (said, marked)
    return [p.partition(": ")[2] for p in e.value.problems]


@pytest.mark.parametrize("gpus", [(), (24 * GIB,)])
def test_with_nothing_there_it_is_an_example_with_places_to_fill(
    tmp_path: Path, gpus: tuple[int, ...]
) -> None:
    (tmp_path / "broken.gguf").write_text("GGUX")
    written = first.written(look.looked([tmp_path], ()), gpus)
    assert "llmgw init --models DIR" in written
    assert "# left out: " in written
    hint = "was to be filled in - write your own path or value in its place"
    assert to_fill_in(written) == [
        f'engines.llama.cpp.command[0]: "/path/to/llama-server" {hint}',
        f'models.my-model.profiles[main].weights: "/path/to/model.gguf" {hint}',
    ]
    filled = written.replace("/path/to/", "/srv/")
    (profile,) = catalogs.load_sources({"c.yaml": filled}).models["my-model"].profiles
    assert profile.command[:3] == ("/srv/llama-server", "--model", "${weights}")
    assert profile.gpus == len(gpus)


def test_without_an_engine_its_place_is_left_to_fill(tmp_path: Path) -> None:
    weights(tmp_path, "m.gguf")
    assert len(to_fill_in(first.written(look.looked([tmp_path], ()), ()))) == 1


def test_programs_by_other_names_and_in_other_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PATH first, in a folder the plain name; then where builds and packages of this Python have them."""
    bins = {name: tmp_path / name for name in ("path", "build", "python", "package/bin")}
    monkeypatch.setenv("PATH", str(bins["path"]))
    monkeypatch.setattr(look, "PLACES", (str(bins["build"]),))
    own = {"scripts": str(bins["python"]), "purelib": str(tmp_path)}
    monkeypatch.setattr("sysconfig.get_path", own.get)

    def found() -> str:
        return look.looked([tmp_path]).programs.get("llama.cpp", "").removeprefix(f"{tmp_path}/")

    assert found() == ""
    for name in (
        "package/bin/llama-server",
        "python/llama-server-vulkan",
        "build/llama-server-cuda",
        "build/llama-server",
        "path/llama-server-rocm",
    ):
        program(tmp_path / name)
        assert found() == name
    program(tmp_path / "path/vllm")
    program(tmp_path / "path/ollama")
    weights(tmp_path, "package/small.gguf")
    monkeypatch.setattr(look, "FOLDERS", ())
    box = look.looked()
    assert [w.name for w in box.weights] == ["small"], "a package may carry weights too"
    written = first.written(box, ())
    assert f"# ollama is here ({tmp_path}/path/ollama)" in written
    (profile,) = catalogs.load_sources({"c.yaml": written}).models["small"].profiles
    assert profile.command[0] == f"{tmp_path}/path/llama-server-rocm"
    assert (profile.health, profile.compute, profile.upstream_key) == ("/health", "llama.cpp", True)
    assert profile.env["LLAMA_API_KEY"] == "${api_key}", "the rest of it is built in"


def test_vllm_too_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    program(tmp_path / "bin/vllm")
    loaded = catalogs.load_sources(
        {"c.yaml": first.written(look.looked([tmp_path], [tmp_path / "bin"]), (GIB,))}
    )
    ((profile,),) = (m.profiles for m in loaded.models.values())
    assert profile.command[:3] == (f"{tmp_path}/bin/vllm", "serve", "${weights}")
    assert "--served-model-name" in profile.command


def test_only_what_needs_an_engine_that_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    assert catalog_of(tmp_path).models == {}


@pytest.mark.parametrize(
    "odd", [{"llama.attention.head_count_kv": "two"}, {"llama.context_length": float("nan")}]
)
def test_a_key_of_another_kind_is_the_files_trouble_and_no_end(tmp_path: Path, odd: Any) -> None:
    weights(tmp_path, "a.gguf", odd)
    (found,) = look.looked([tmp_path], ()).weights
    assert found.trouble.startswith("a key of another kind")


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    (found,) = look.looked([tmp_path], ()).weights
    assert found.trouble == "it is no plain file"
