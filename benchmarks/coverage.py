"""Check the reader on every causal language model that the installed transformers knows.

For each class a tiny model (width 64, two layers, 2048 tokens) is saved with ``save_pretrained``, with the names in its
files and in its modules, and opened as users do. Then

- the embedding and the unembedding must be bitwise equal to the module's own;
- every role is checked against a recorded forward pass: q, k and v must be the inputs of attention, o must read its
  output, gate, up and down must produce the output of an MLP or an expert, and a norm must be at its stated position.
  Names are not trusted; a weight with another function counts as wrong;
- a copy with 1 % noise on every weight must be found, and a model of the same shape with another seed must not.

The script prints a table and totals, and writes ``benchmarks/results/pages/coverage.md``. It lists classes that
transformers itself cannot build or run, with the reason. It takes about three minutes on two idle cores.
"""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks import oracles
from mdir_hf import HomologyChecker
from mdir_hf.errors import MdirError
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Anatomy, Role, read_part
from tests.model.roles.forward_record import ForwardRecord, record_forward
from tests.model.roles.judgement import Judgement, judge
from tests.model.roles.tiny_causal import MORE_TOKENS, build_module, inputs_of, save_and_open

PAGE = Path(__file__).parent / "results" / "pages" / "coverage.md"
NOISE = 0.01

ATTENTION = (Role.Q, Role.K, Role.V, Role.O)
MLP = (Role.UP, Role.DOWN, Role.GATE)

REASONS: dict[str, str] = {
    "blt": "four stacks for bytes and patches; the layers for patches are compared",
    "deepseek_v4": "the output passes two grouped factors, which are not a product of two matrices",
    "gemma3n": "transformers needs the package timm to build it; its text model has its own row",
    "gemma4_assistant": "transformers cannot build it: one check requires every layer to borrow keys, another "
    "forbids it",
    "gemma4_unified_assistant": "the last two of its four layers borrow the keys and values of the model it assists",
    "hrm_text": "two stacks that run in turns; the layers of the slow one are compared",
    "jetmoe": "queries and outputs belong to the experts of its attention",
    "longcat_flash": "two attentions and two MLPs in a layer; the first of each is compared",
    **dict.fromkeys(
        ("musicgen", "musicgen_melody"),
        "four sound codes at a time, each with its own embedding, so there is no single embedding",
    ),
    **dict.fromkeys(
        ("zamba", "zamba2"),
        "layers share attention, and only an MLP reads its output: o, gate and up do not touch the stream",
    ),
    "zaya": "a convolution mixes queries and keys, and half of the values come from the previous token",
}
"""Reasons for incomplete rows; the test of the whole table requires that all other rows are complete."""

HELD_ELSEWHERE = {
    "minimax": "tests/model/roles/test_linear_attention.py",
    "rwkv": "tests/model/roles/test_rwkv.py",
}
"""Models with recurrent layers that the recording skips, and the test that checks their roles by value."""

MIXER_TEST = "tests/model/roles/test_state_space.py"


@dataclass
class Row:
    """Result for one class.

    Attributes:
        model_type: Name in transformers.
        name: The class.
        embedding: Whether the embedding is the module's own.
        attention: Roles verified in every layer with attention, as ``q k v o``; ``-`` if there is none.
        mlp: Roles verified in every layer with an MLP or experts; ``-`` if there is none.
        mixer: Layers with a state-space mixer or a gated convolution; :data:`MIXER_TEST` checks their roles.
        relative: Whether the noisy copy was found.
        stranger: Whether the unrelated model was not found.
        wrong: Descriptions of roles with another function.
        left: Names of matrices without a role.
        problem: Reason for a failure, or an empty string.
        seconds: Duration.
    """

    model_type: str
    name: str
    embedding: bool = False
    attention: str = ""
    mlp: str = ""
    mixer: int = 0
    relative: bool = False
    stranger: bool = False
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    problem: str = ""
    seconds: float = 0.0

    @property
    def is_full(self) -> bool:
        """Whether all parts of the model were placed and verified."""
        return (
            self.embedding
            and self.attention in ("q k v o", "-")
            and self.mlp in ("gate up down", "up down", "-")
            and self.relative
            and self.stranger
            and not self.wrong
            and not self.problem
        )


def cover(model_type: str, *, compares: bool = True) -> Row:
    """Compute the row of one class, including any failure.

    Args:
        model_type: Name in transformers.
        compares: Whether to compare it with its noisy copy and with a stranger, which takes most of the time.
    """
    started = time.perf_counter()
    row = Row(model_type, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        _fill(row, Path(folder), compares=compares)
    row.seconds = round(time.perf_counter() - started, 2)
    return row


def _fill(row: Row, folder: Path, *, compares: bool) -> None:
    try:
        module = build_module(row.model_type)
    except Exception as exc:  # a class that transformers rejects is a row, not a crash
        row.problem = f"transformers cannot build it: {_one_line(exc)}"
        return
    try:
        model = save_and_open(module, folder / "reference")
    except MdirError as exc:
        row.problem = exc.message
        return
    anatomy = model.anatomy
    ends = (
        (anatomy.embedding, module.get_input_embeddings()),
        (anatomy.unembedding or anatomy.embedding, module.get_output_embeddings()),  # none is stored if it is tied
    )
    row.embedding = all(
        part is not None and torch.equal(read_part(model.tensors, part), own.weight)
        for part, own in ends
        if own is not None
    )
    try:
        record = record_forward(module, more_tokens=MORE_TOKENS.get(row.model_type, ()), **inputs_of(row.model_type))
    except Exception as exc:
        row.problem = f"transformers cannot run it on a token: {_one_line(exc)}"
    else:
        _hold(row, model, record)
        _hold_names_of_modules(row, model, module, record, folder)
    if not compares:
        return
    try:
        _compare(row, module, folder)
    except MdirError as exc:
        row.problem = f"the comparison ends in an error: {exc.message}"


def _hold(row: Row, model: Model, record: ForwardRecord) -> None:
    """Check the roles against the record."""
    anatomy = model.anatomy
    judgement = judge(anatomy, model.tensors, record)
    if row.model_type in HELD_ELSEWHERE:
        for layer, proved in zip(anatomy.layers, judgement.proved, strict=True):
            if layer.rope == "none":
                judgement.wrong = [
                    sentence for sentence in judgement.wrong if not sentence.startswith(f"layer {layer.index}:")
                ]
                proved.update(layer.parts)
    row.wrong = judgement.wrong
    row.attention = _attention(anatomy, record, judgement)
    row.mlp = _mlp(anatomy, judgement)
    row.mixer = sum(Role.SSM_IN in layer.parts for layer in anatomy.layers)
    row.left = list(_left(model))


def _hold_names_of_modules(
    row: Row, model: Model, module: PreTrainedModel, record: ForwardRecord, folder: Path
) -> None:
    """Repeat with the module names if the files have other names."""
    with_module_names = save_and_open(module, folder / "in_modules", original_format=False)
    if set(with_module_names.tensors.names()) == set(model.tensors.names()):
        return
    again = Row(row.model_type, row.name)
    _hold(again, with_module_names, record)
    row.wrong += [f"{sentence} (in the names of modules)" for sentence in again.wrong]
    if (again.attention, again.mlp, again.mixer) != (row.attention, row.mlp, row.mixer):
        row.problem = f"in the names of modules: {again.attention or 'no attention'}, {again.mlp or 'no MLP'}"


def _attention(anatomy: Anatomy, record: ForwardRecord, judgement: Judgement) -> str:
    attends = [
        proved
        for layer, proved in zip(anatomy.layers, judgement.proved, strict=True)
        if any(role in layer.parts for role in ATTENTION)
    ]
    if not attends:
        return "" if record.attention else "-"
    everywhere = " ".join(role.value for role in ATTENTION if all(role in proved for proved in attends))
    n_seen, n_placed = judgement.n_attention
    return f"{everywhere} in {n_placed} of {n_seen}" if everywhere and n_placed < n_seen else everywhere


def _mlp(anatomy: Anatomy, judgement: Judgement) -> str:
    """Return roles verified in every layer with an MLP; stacks of experts without a role count as missing."""
    layers = [
        proved
        for layer, proved in zip(anatomy.layers, judgement.proved, strict=True)
        if any(role in parts for parts in (layer.parts, *layer.experts, *layer.shared_experts) for role in MLP)
    ]
    if not layers:
        return "" if any(role in layer.missing for layer in anatomy.layers for role in MLP) else "-"
    if any(re.search(r"experts\.(gate|up|down|w\d)", name) for name in anatomy.unplaced if _is_whole_expert(name)):
        return ""
    return " ".join(role.value for role in (Role.GATE, Role.UP, Role.DOWN) if all(role in proved for proved in layers))


def _is_whole_expert(name: str) -> bool:
    # LongCat stores gates of experts that it does not use.
    return re.search(r"experts\.\d+\.", name) is None


def _left(model: Model) -> Iterator[str]:
    """Return names of matrices without a role, without layer numbers."""
    stack = re.compile(r"^.*?\.\d+\.")
    matrices = [name for name in model.anatomy.unplaced if len(model.tensors.spec(name).shape) > 1]
    yield from sorted({stack.sub("", name).removesuffix(".weight") for name in matrices})


def _compare(row: Row, module: PreTrainedModel, folder: Path) -> None:
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() > 1:
                parameter += torch.randn(parameter.shape, generator=noise) * NOISE * parameter.std()
    save_and_open(module, folder / "relative")
    save_and_open(build_module(row.model_type, seed=1), folder / "stranger")

    def verdict(candidate: str, level: str) -> str:
        checker = HomologyChecker.from_pretrained(folder / "reference")
        return checker.compare(folder / candidate, level=level, progress=False).verdict.value

    row.relative = verdict("relative", "layers") == "homologous"
    row.stranger = verdict("stranger", "auto") != "homologous"


def _one_line(exc: Exception) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text[:160]}" if text else type(exc).__name__


# --- the table

HEADER = (
    "class",
    "model type",
    "embedding",
    "attention",
    "MLP",
    "relative found",
    "stranger not significant",
    "parts without a role, and reasons",
)


def cells(row: Row) -> tuple[str, ...]:
    """Format a row of the table."""
    attention = " + ".join(filter(None, (row.attention or "no", f"{row.mixer} mixers" if row.mixer else "")))
    what = [f"WRONG: {sentence}" for sentence in row.wrong]
    what.append(REASONS.get(row.model_type, row.problem) if not row.is_full else "")
    if row.left:
        what.append("no role: " + ", ".join(row.left))
    return (
        row.name,
        row.model_type,
        "yes" if row.embedding else "no",
        attention,
        row.mlp or "no",
        "yes" if row.relative else "no",
        "yes" if row.stranger else "no",
        "; ".join(sentence for sentence in what if sentence),
    )


def totals(rows: Sequence[Row]) -> list[str]:
    """Summarise the rows in sentences."""
    n = len(rows)

    def count(what: Iterable[bool]) -> str:
        return f"{sum(what)} of {n}"

    return [
        f"{count(row.embedding for row in rows)} embeddings are the module's own",
        f"{count(row.attention in ('q k v o', '-') for row in rows)} classes have q, k, v and o verified in every "
        f"layer with attention ({sum(row.attention == '-' for row in rows)} have no attention)",
        f"{count(row.mlp in ('gate up down', 'up down', '-') for row in rows)} classes have the MLP verified in every "
        f"layer with an MLP ({sum(row.mlp == '-' for row in rows)} have none)",
        f"{sum(len(row.wrong) for row in rows)} roles are wrong",
        f"{count(row.relative for row in rows)} relatives are found",
        f"{count(row.stranger for row in rows)} strangers are not significant",
        f"{count(row.is_full for row in rows)} rows are complete",
    ]


def page(rows: Sequence[Row]) -> str:
    """Format the page in Markdown."""
    lines = [
        "# Every causal language model that transformers knows",
        "",
        f"`make coverage` wrote this page with transformers {transformers.__version__}. `benchmarks/coverage.py` "
        "explains the columns and their checks. Other tests check the roles of some layers: mixers by "
        f"`{MIXER_TEST}`, recurrent "
        "layers of " + ", ".join(f"{name} by `{test}`" for name, test in HELD_ELSEWHERE.items()) + ".",
        "",
        *(f"- {sentence}" for sentence in totals(rows)),
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + " --- |" * len(HEADER),
        *("| " + " | ".join(cell.replace("|", "/") for cell in cells(row)) + " |" for row in rows),
        "",
        oracles.section(),
    ]
    return "\n".join(lines)


def _quietly() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def cover_all(words: Sequence[str] = ()) -> None:
    """Print the table and totals of all classes, and write the page; with words, only print these classes.

    Raises:
        SystemExit: If a class does not exist, or if a role is wrong.
    """
    chosen = words or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    unknown = sorted(set(chosen) - set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
    if unknown:
        raise SystemExit(f"transformers {transformers.__version__} has no causal model called {', '.join(unknown)}")
    rows: list[Row] = []
    with ProcessPoolExecutor(2, initializer=_quietly) as pool:
        for row in pool.map(cover, chosen):
            rows.append(row)
            print(" | ".join(cells(row)), flush=True)
    print("\n".join(["", *totals(rows)]))
    if not words:
        PAGE.write_text(page(rows), encoding="utf-8")
    if any(row.wrong for row in rows):
        raise SystemExit(1)
