"""Make the stored results of the Space, and the figures of its page on the method: ``make examples``.

The results come from ``checker.compare`` on real models and on models that ``benchmarks/real`` made from them, in the
folder ``MDIR_HF_REAL_CACHE`` (filled by ``make real``). If a model is missing, its stored result stays unchanged. The
models are in no repository, so a stored result names no commit. The arrays of its figures are stored beside it in 256
steps, because JSON does not hold them. The figures show models of the demo, which are built if they are missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from mdir_hf import HomologyReport
    from mdir_hf.report import MatrixArrays

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.real.sources import SOURCES, Source, cache_root  # noqa: E402

TARGET = ROOT / "space" / "examples"
PICTURES = ROOT / "space" / "pictures"
MODELS = Path("demo-out") / "models"
DIGITS = 4
"""Decimals of numbers in a stored report."""


@dataclass(frozen=True)
class RealPair:
    """A result to store.

    Attributes:
        title: Label of its button.
        reference: ``base/member`` in the cache.
        candidate: ``base/member`` in the cache.
        called: Name of the candidate in the report.
        done: How the candidate was made from the base; empty for another base.
        level: Level of the comparison.
        question: The visitor's question, if it is one of the few shown first; else empty.
    """

    title: str
    reference: str
    candidate: str
    called: str
    done: str = ""
    level: str = "auto"
    question: str = ""

    @property
    def base(self) -> Source:
        """The source of the reference."""
        return SOURCES[self.reference.partition("/")[0]]


EXAMPLES = {
    "fine-tune": RealPair(
        "A fine-tune",
        "smollm2-135m-instruct/base",
        "smollm2-135m-instruct/tuned-1e-4",
        "SmolLM2-135M-Instruct-fine-tuned",
        "trained further, on prose, at a learning rate of 1e-4",
        question="Is this fine-tune made from SmolLM2?",
    ),
    "permuted": RealPair(
        "Channels reordered",
        "smollm2-135m-instruct/base",
        "smollm2-135m-instruct/permuted",
        "SmolLM2-135M-Instruct-reordered",
        "with its channels in another order, which leaves its function unchanged",
    ),
    "upscaled": RealPair(
        "Layers repeated",
        "smollm2-135m-instruct/base",
        "smollm2-135m-instruct/upscaled",
        "SmolLM2-135M-Instruct-deeper",
        "made deeper: the first and the last three quarters of its layers, stacked",
        "layers",
    ),
    "hidden": RealPair(
        "A hidden copy",
        "smollm2-135m-instruct/base",
        "smollm2-135m-instruct/hidden",
        "SmolLM2-135M-Instruct-hidden",
        "rotated, reordered, turned and rescaled in all ways at once that leave its function unchanged",
        question="Is a copy found whose weights were disguised?",
    ),
    "other-tokenizer": RealPair(
        "Another tokenizer",
        "smollm2-135m-instruct/base",
        "smollm2-135m-instruct/retokenised",
        "SmolLM2-135M-Instruct-retokenised",
        "given another tokenizer, whose embeddings were trained",
    ),
    "quantised": RealPair(
        "Quantised, as GGUF",
        "smollm2-135m-instruct/base",
        "smollm2-135m-instruct/gguf-q4_k",
        "SmolLM2-135M-Instruct-GGUF",
        "written as GGUF with 5.4 bits for each weight: Q4_K, and Q5_0 for rows that do not fill its blocks",
    ),
    "strangers": RealPair(
        "Two strangers",
        "qwen2.5-coder-0.5b-instruct/base",
        "qwen2.5-coder-1.5b-instruct/base",
        "Qwen2.5-Coder-1.5B-Instruct",
        question="Is Qwen2.5-Coder-1.5B made from the 0.5B?",
    ),
}

# Name of a figure -> member of the demo (for flow, a stored result), level, figure of its report.
IDEAS = {
    "relatives": ("fine-tune", "auto", "embedding"),
    "strangers": ("other-seed", "auto", "embedding"),
    "reordered": ("permuted", "layers", "embedding"),
    "matched": ("permuted", "layers", "embedding_matched"),
    "copied": ("permuted", "layers", "neurons"),
    "not-copied": ("other-seed", "auto", "neurons"),
    "layers": ("permuted", "layers", "layers"),
    "drift": ("rotated", "layers", "drift"),
    "flow": ("upscaled", "layers", "flow"),
}


def main() -> None:
    """Renew the named results, or all results and figures."""
    for name, pair in EXAMPLES.items():
        if name in sys.argv[1:] or not sys.argv[1:]:
            store(name, pair)
    stored = {name: pair for name, pair in EXAMPLES.items() if (TARGET / f"{name}.json").is_file()}
    index = [
        {
            "name": name,
            "title": pair.title,
            "note": note_of(pair),
            "models": [pair.base.title, pair.called],
            **({"question": pair.question} if pair.question else {}),
        }
        for name, pair in stored.items()
    ]
    (TARGET / "index.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if not sys.argv[1:]:
        draw()


def store(name: str, pair: RealPair) -> None:
    """Compare the two models of a pair, if they are in the cache, and store the result."""
    import numpy as np

    from mdir_hf import HomologyChecker

    folders = [cache_root() / "models" / model for model in (pair.reference, pair.candidate)]
    if not all(folder.is_dir() for folder in folders):
        sys.stdout.write(f"{name}: a model is not in the cache; its stored result stays\n")
        return
    checker = HomologyChecker.from_pretrained(str(folders[0]), use_caches=False)
    report = named(checker.compare(str(folders[1]), level=pair.level, describes=True, progress=False), pair)
    TARGET.mkdir(exist_ok=True)
    body = json.dumps(_rounded(report.to_dict()), separators=(",", ":"))
    (TARGET / f"{name}.json").write_text(body + "\n", encoding="utf-8")
    # Entries of a polar factor, reduced to block maxima, are between 0 and 1.
    arrays = {
        key: np.rint(255 * array).astype(np.uint8) if np.issubdtype(array.dtype, np.floating) else array
        for matrix in report.matrices
        for key, array in _stored(matrix, getattr(report.arrays, matrix))
    }
    np.savez_compressed(TARGET / f"{name}.npz", **arrays)
    sys.stdout.write(f"{name}: {report.verdict.value}, {report.strength}, {sum(report.seconds.values()):.0f} s\n")
    sys.stdout.flush()


def named(report: HomologyReport, pair: RealPair) -> HomologyReport:
    """Replace local folders by readable names."""
    from mdir_hf.report import DirectionFact

    files = tuple(sorted({Path(file).name for file in report.io.files}))
    reference = replace(report.reference, repo=pair.base.title, tokenizer=None)
    names = {report.reference.repo: pair.base.title, report.candidate.repo: pair.called}

    def without_folders(text: str) -> str:
        for folder, name in names.items():
            text = text.replace(folder, name)
        return text

    return replace(
        report,
        reference=reference,
        candidate=replace(report.candidate, repo=pair.called, tokenizer=None, file=None),
        io=replace(report.io, files=files),
        direction=tuple(DirectionFact(fact.fact, without_folders(fact.evidence)) for fact in report.direction),
        caveats=tuple(map(without_folders, report.caveats)),
    )


def note_of(pair: RealPair) -> str:
    """Describe the models of a stored result and the sources of their weights."""
    base = pair.base
    read = f"{base.title} was read back as BF16 from {base.read_from}"
    if not pair.done:
        candidate = SOURCES[pair.candidate.partition("/")[0]]
        return f"A stored result, measured on real models. {read}, {candidate.title} from {candidate.read_from}."
    made = f"{pair.called} is {base.title} {pair.done}; it was made for this example and is in no repository"
    return f"A stored result, measured on real models. {made}. {read}."


def _rounded(value: object) -> object:
    if isinstance(value, float):
        # Probabilities are small and keep their digits.
        return value if abs(value) < 1e-6 else round(value, DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _stored(name: str, arrays: MatrixArrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of one pair of matrices under the names that the Space expects."""
    kinds = {"": arrays.polar, "_matched": arrays.matched, "_channels": arrays.channels}
    yield from ((name + kind, array) for kind, array in kinds.items() if array is not None)


def draw() -> None:
    """Draw the figures of the page on the method, from models of the demo and one stored result."""
    from mdir_hf import HomologyChecker, HomologyReport
    from mdir_hf.demo.lineage import build_lineage
    from mdir_hf.render.figures import figure_bytes

    lineage = build_lineage(MODELS)
    folders = {member.repo.rpartition("/")[2]: member.folder for member in lineage.members}
    checker = HomologyChecker.from_pretrained(str(folders["base"]), use_caches=False)
    reports = {}
    for member, level, _ in set(IDEAS.values()):
        if member not in folders:
            reports[member] = HomologyReport.from_json((TARGET / f"{member}.json").read_text(encoding="utf-8"))
            continue
        report = checker.compare(str(folders[member]), level=level, describes=True, progress=False)
        named_models = {
            side: replace(getattr(report, side), repo=f"demo/{name}")
            for side, name in (("reference", "base"), ("candidate", member))
        }
        reports[member] = replace(report, **named_models)
    PICTURES.mkdir(exist_ok=True)
    alt = {}
    for idea, (member, _, figure_name) in IDEAS.items():
        for theme in ("light", "dark"):
            figure = reports[member].figures(dark=theme == "dark")[figure_name]
            (PICTURES / f"{idea}-{theme}.svg").write_bytes(figure_bytes(figure, "svg"))
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        alt[idea] = {"alt": str(figure.get_label()), "width": width, "height": height}
    for says, (member, _, _) in {"yes": IDEAS["relatives"], "no": IDEAS["strangers"]}.items():
        for theme in ("light", "dark"):
            _write_thumbnail(reports[member], PICTURES / f"landing-{says}-{theme}.webp", is_dark=theme == "dark")
    (PICTURES / "index.json").write_text(json.dumps(alt, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_thumbnail(report: HomologyReport, path: Path, *, is_dark: bool) -> None:
    """Write the map of channels for the head of the page, one pixel for each pair."""
    import numpy as np
    from PIL import Image

    from mdir_hf.render.figures.theme import colour_map, theme_of

    polar = report.arrays.embedding.polar
    assert polar is not None
    pixels = colour_map(theme_of(dark=is_dark))(np.sqrt(np.clip(polar, 0.0, 1.0)), bytes=True)
    Image.fromarray(pixels[:, :, :3]).save(path, "WEBP", quality=70, method=6)


if __name__ == "__main__":
    main()
