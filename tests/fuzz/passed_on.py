"""Fuzz targets for files that users share: indexes, fingerprints and surveys of this package, and merge recipes."""

from __future__ import annotations

import atexit
import copy
import hashlib
import json
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors import SafetensorError

from mdir_hf.errors import CorruptCheckpointError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.fingerprints.opening import Pin
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import what_is_excluded
from mdir_hf.lineage.index.identify import Ancestor, Identification, judge_hits
from mdir_hf.lineage.recipe import read_recipe
from mdir_hf.lineage.survey import RESULTS
from mdir_hf.lineage.survey.folder import SurveyFolder
from mdir_hf.lineage.survey.results import ModelResult, PairResult, Stage
from mdir_hf.lineage.survey.sample import Sample
from mdir_hf.lineage.survey.saving import _markdown, dataset_files
from mdir_hf.report import ModelSummary, SettledBy
from tests.fuzz.mutations import Draw, changed_json, damaged, line_files
from tests.fuzz.property import Target

FOLDER = tempfile.TemporaryDirectory(prefix="mdir-fuzz-")
"""One temporary folder for each process."""
atexit.register(FOLDER.cleanup)
WORDS = tuple(f"word{number}".encode() for number in range(12))
ROWS = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)).bfloat16()


def _summary(name: str) -> ModelSummary:
    return ModelSummary(name, None, "0" * 40, "llama", 8, 2, 12, quantization=None)


QUERY = Fingerprint(_summary("owner/query"), WORDS, ROWS + 0.1, 192)
KEPT = Fingerprint(_summary("owner/base"), WORDS, ROWS, 192, {"model.safetensors": "1" * 64}, ("a note",))


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    (n_bytes,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + n_bytes]), content[8 + n_bytes :]


def _index_bytes() -> bytes:
    other = Fingerprint(_summary("owner/other"), WORDS[:10], -ROWS[:10], 192)
    with tempfile.TemporaryDirectory() as folder:
        BaseIndex(WORDS, [KEPT, other]).save(Path(folder, "x"))
        return Path(folder, "x").read_bytes()


@st.composite
def with_metadata(draw: Draw, content: bytes) -> bytes:
    """A safetensors file with JSON in its metadata; this JSON or the table of tensors is changed."""
    header, numbers = _split(content)
    header = copy.deepcopy(header)
    known = header["__metadata__"]
    inner = [name for name, value in known.items() if value[:1] in ("[", "{")]
    if draw(st.integers(0, 5)):
        name = draw(st.sampled_from(inner))
        changed = draw(changed_json({"it": json.loads(known[name])}))
        known[name] = json.dumps(changed.get("it"), ensure_ascii=draw(st.booleans()))
    elif draw(st.booleans()):
        tensor = draw(st.sampled_from([name for name in header if name != "__metadata__"]))
        header[tensor]["dtype"] = draw(
            st.sampled_from(("F16", "I16", "U16", "F8_E4M3", "F4", "F8_E8M0", "C64", "BOOL"))
        )
    else:
        header = draw(changed_json(header))
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return draw(damaged(struct.pack("<Q", len(text)) + text + draw(damaged(numbers))))


def _on_disk(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """Adapt a reader of paths to bytes, with the same file name each time."""

    def of_bytes(data: bytes) -> object:
        path = Path(FOLDER.name, name)
        path.write_bytes(data)
        try:
            return read(path)
        except CorruptCheckpointError as exc:
            if isinstance(exc.__cause__, SafetensorError):
                return "refused by safetensors"  # it names any one of the wrong tensors
            raise

    return of_bytes


def _index(path: Path) -> object:
    """Do everything that ``identify`` does with an index before it opens a base."""
    index = BaseIndex.load(path)
    if not len(index):
        return "no bases"
    query = QUERY.of_usual_rows()
    ancestors = [
        Ancestor(hit.base, score, hit.common_tokens, is_nominated=score < -3.0)
        for hit, score in judge_hits(index, query, top=5, alpha=1e-3)
    ]
    width, noise = what_is_excluded(index, 8, query.tokens, 1e-3)
    found = Identification(query.model, tuple(ancestors), len(index), 1e-3, 0, width, noise)
    return str(found), found.to_json(), [(one.base.pinned, one.base.read_as) for one in ancestors]


def _fingerprint(path: Path) -> object:
    found = Fingerprint.load(path)
    found.to_bytes()  # not compared, since the order of the metadata varies
    mine, theirs = found.of_usual_rows().common_rows(QUERY)
    return (
        found.tokens,
        found.digests,
        found.notes,
        mine.shape,
        theirs.shape,
        found.model.pinned,
        found.model.read_as,
        found.n_bytes,
    )


def _survey(path: Path) -> object:
    state = SurveyFolder(path.parent)
    report = state.report
    return report.to_json(), str(report), dataset_files(report), _markdown(report, ()), state.sample, state.n_ignored


def _recipe(data: bytes) -> object:
    return read_recipe(data, subject="mergekit_config.yml")


MODELS: Mapping[str, ModelResult] = {
    "a/one": ModelResult("a/one", _summary("a/one"), None, 5, ("a/two",)),
    "a/two": ModelResult("a/two", _summary("a/two"), None, 5, ()),
    "a/three": ModelResult("a/three", None, "it is not there", 0, None),
}
PAIRS = {
    ("a/one", "a/two"): PairResult(
        "a/one", "a/two", "homologous", None, -30.0, settled_by=SettledBy.NUMBER, agreement="all 64 neurons match"
    )
}
SETTINGS = {"alpha": 1e-10, "alpha_of_pair": 1e-11, "seed": 0, "n_tokens": 12, "version": "1"}
PINS = {name: Pin(f"hf://models/{name}@{'0' * 40}", "0" * 40, {"a/base": "1" * 40}) for name in ("a/one", "a/two")}


def _survey_lines() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        state = SurveyFolder(Path(folder), tuple(MODELS), SETTINGS)
        state.begin(Sample(WORDS[:3], PINS, 5))
        for name, model in MODELS.items():
            state.add_model(model, PINS.get(name))
        state.add_pairs(PAIRS.values())
        state.finish(Stage.NUMBER)
        return Path(folder, RESULTS).read_bytes().splitlines()


LINES = _survey_lines()


@st.composite
def surveys(draw: Draw) -> bytes:
    """Lines of a survey, some of them changed; their checksums fit, because anybody can compute them."""
    bodies = [{key: value for key, value in json.loads(line).items() if key != "sum"} for line in LINES]
    texts = [json.dumps(draw(changed_json(body))).encode("utf-8", "surrogatepass") for body in bodies]
    signed = [
        text[:-1] + f', "sum": "{hashlib.sha256(text).hexdigest()[:16]}"}}'.encode() if text[-1:] == b"}" else text
        for text in texts
    ]
    return draw(line_files(signed))


RECIPE = b"""merge_method: slerp
base_model: a/one
slices:
- sources:
  - model: a/one
    layer_range: [0, 2]
  - model:
      model: {path: a/two, revision: main}
    layer_range: [0, 2]
parameters: {t: 0.5}
dtype: bfloat16
"""

PASSED_ON: dict[str, Target] = {
    "base-index": Target(with_metadata(_index_bytes()), _index_bytes(), _on_disk(_index, "base-index")),
    "fingerprint": Target(with_metadata(KEPT.to_bytes()), KEPT.to_bytes(), _on_disk(_fingerprint, "fingerprint")),
    "survey": Target(surveys(), b"".join(line + b"\n" for line in LINES), _on_disk(_survey, RESULTS)),
    "recipe": Target(line_files(RECIPE.split(b"\n")), RECIPE, _recipe),
}
