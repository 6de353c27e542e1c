"""Format an inspection as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import fill

from mdir_hf.comparison.inspection.found import (
    Inspection,
    LayerGroup,
    PartSummary,
    ReadEstimate,
    TensorSummary,
    VocabularySummary,
)
from mdir_hf.names import LONGEST_TEXT, shown_name, visible_text
from mdir_hf.report import n_bytes_text

MOST_NAMES = 20
"""Number of tensors without a role that the text lists. JSON lists all of them."""
NAME_LENGTH = 120


def lines_of(inspection: Inspection) -> Iterator[str]:
    """Yield the lines of an inspection."""
    model = inspection.model
    at = "" if model.commit is None else f"@{model.commit[:7]}"
    layers = f", {_counted(model.layers, 'layer')}" if model.layers else ""
    heads = (
        "" if inspection.heads is None else f", {inspection.heads[0]} heads ({inspection.heads[1]} for keys and values)"
    )
    name = shown_name(model.repo, length=200)
    yield f"{name}{at}: {shown_name(model.architecture)}{layers}, width {model.hidden_size}{heads}"
    if model.read_as:
        yield _line("read as", model.read_as)
    quantization = "" if inspection.quantization is None else f", {inspection.quantization}"
    files = f"{_counted(inspection.files, 'file')}, " if inspection.files else ""
    size = n_bytes_text(inspection.bytes_of_weights)
    yield _line("weights", f"{inspection.format}{quantization}: {files}{size}, {inspection.tensors} tensors")
    yield _line("embedding", "none found" if inspection.embedding is None else _tensor_text(inspection.embedding))
    if inspection.unembedding is not None:
        yield _line("unembedding", _tensor_text(inspection.unembedding))
    else:
        yield _line("unembedding", "tied to the embedding" if inspection.tied else "none found")
    yield _line("vocabulary", "none" if inspection.vocabulary is None else _vocabulary_text(inspection.vocabulary))
    for group in inspection.layer_groups:
        plural = "" if len(group.layers) == 1 else "s"
        if all(name.isdigit() for name in group.names):
            yield _line(f"layer{plural} {_ranges(group.layers)}", _group_text(group))
        else:
            yield _line(f"layer{plural}", f"{', '.join(group.names)}: {_group_text(group)}")
    if not inspection.layer_groups:
        yield _line("layers", "none found")
    if inspection.unplaced:
        more = len(inspection.unplaced) - MOST_NAMES
        names = ", ".join(shown_name(name, length=NAME_LENGTH) for name in inspection.unplaced[:MOST_NAMES])
        listed = names + (f" and {more} more" if more > 0 else "")
        yield _line("no role", f"{_counted(len(inspection.unplaced), 'tensor')} of the layers: {listed}")
    for part in inspection.inventory:
        yield _line("part", _part_text(part))
    yield _line("reads", _reads_text(inspection.reads))
    for note in inspection.notes:
        yield _line("note", note)
    io = inspection.io
    requests = f" in {io.requests} requests" if io.requests else ""
    yield _line("read now", f"{n_bytes_text(io.bytes_read)}{requests}")


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _line(name: str, text: str) -> str:
    return fill(
        visible_text(text, length=LONGEST_TEXT),
        100,
        initial_indent=f"  {name:<14} ",
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,  # keep repository names and paths whole for copying
    )


def _tensor_text(tensor: TensorSummary) -> str:
    shape = " x ".join(map(str, tensor.shape))
    return f"{shown_name(tensor.tensor, length=NAME_LENGTH)}, {shape} {tensor.dtype}, {n_bytes_text(tensor.n_bytes)}"


def _vocabulary_text(words: VocabularySummary) -> str:
    counts = {name: getattr(words, name) for name in ("special", "reserved", "unused", "duplicate")}
    left_out = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    usable = f"{words.kind} ({', '.join(words.files)}): {words.tokens} usable tokens of {words.rows}"
    return f"{usable}; left out: {left_out}" if left_out else usable


def _group_text(group: LayerGroup) -> str:
    parts = [" ".join(group.roles) or "nothing"]
    if group.experts:
        parts.append(f"{group.experts} experts ({' '.join(group.expert_roles)})")
    if group.shared_experts:
        parts.append(f"{group.shared_experts} shared")
    if group.missing:
        parts.append(f"not found: {' '.join(group.missing)}")
    return "; ".join(parts)


def _part_text(part: PartSummary) -> str:
    size = "size unknown (--all-headers reads it)" if part.bytes is None else n_bytes_text(part.bytes)
    layers = f", {_counted(len(part.layers), 'layer')}" if part.layers else ""
    how = {"names": "", "class": ", by its class", "shapes": ", by shapes"}.get(part.decided_by, "")
    reason = "" if part.reason is None or part.reason in part.part else f" ({part.reason})"
    return f"{part.part}{reason}{layers}: {_counted(part.tensors, 'tensor')}, {size}{how}"


def _reads_text(reads: ReadEstimate) -> str:
    parts = []
    if reads.screen is not None and reads.embedding is not None:
        parts.append(f"screen {n_bytes_text(reads.screen[0])} to {n_bytes_text(reads.screen[1])}")
        parts.append(f"embedding {n_bytes_text(reads.embedding)}")
    if reads.unembedding is not None:
        parts.append(f"unembedding {n_bytes_text(reads.unembedding)}")
    if reads.layers is None:
        parts.append("layers not counted (--all-headers counts them)")
    else:
        parts += [f"layer map by {role} {n_bytes_text(n)}" for role, n in reads.layers.items()]
    if reads.body is not None:
        parts.append(f"all layers {n_bytes_text(reads.body)}")
    return ", ".join(parts)


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, such as ``0-2, 5, 7-9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
