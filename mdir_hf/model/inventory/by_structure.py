"""Solve the roles of matrices with unknown names from shapes, orientation and repetition.

A layer of a transformer has few arrangements: an MLP with or without a gate, separate or fused, and attention with
separate or fused projections. A group of matrices, such as all of a folder, gets roles only if one arrangement explains
all of it. Shapes leave
some questions open, such as which of two matrices is the gate; :attr:`~mdir_hf.model.roles.Anatomy.readings` lists the
possible answers, and a comparison takes the one that agrees with the other model.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from types import MappingProxyType

from mdir_hf.model.inventory.take import auxiliary_label
from mdir_hf.model.roles import Anatomy, ConfigSizes, FusedRows, Layer, Role, WeightPart
from mdir_hf.model.roles.layer_names import rows_of, split_at_layer
from mdir_hf.model.roles.parts import StoredWeight
from mdir_hf.model.roles.resolve import Reading
from mdir_hf.model.roles.roles import Layout
from mdir_hf.model.roles.tables import INTERMEDIATE_SIZE_KEYS
from mdir_hf.model.roles.wrappers import without_wrappers

Shape = tuple[int, ...]
ShapeOf = Callable[[str], Shape]

MLP_ROLES = (Role.GATE, Role.UP, Role.DOWN)
ATTENTION_ROLES = (Role.Q, Role.K, Role.V, Role.O)

HEAD_WIDTHS = frozenset({16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256})
"""Widths of heads to try if a fused projection has an unknown number of heads."""

MOST_MATRICES = 16
"""Largest number of unknown matrices in a layer; an arrangement uses at most seven."""

MOST_GAINS = 4
"""Largest number of unknown norms in a layer that are tried as the norm before a group."""

_CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.)")
_WORDS = re.compile(r"[._]")
_NAMED: Mapping[Role, frozenset[str]] = {
    Role.Q: frozenset({"q", "wq", "query"}),
    Role.K: frozenset({"k", "wk", "key"}),
    Role.V: frozenset({"v", "wv", "value"}),
    Role.O: frozenset({"o", "wo", "out", "output", "dense", "post"}),
    Role.GATE: frozenset({"gate"}),
    Role.UP: frozenset({"up"}),
    Role.DOWN: frozenset({"down"}),
}
"""Words that name a role wherever they are used. They choose among arrangements that shapes allow."""


@dataclass(frozen=True)
class _Stored:
    """A matrix of a layer: its name within the layer, and its stored shape."""

    suffix: str
    shape: Shape


_Part = tuple[str, Layout | None, bool]
"""A role's name within the layer, its rows, and whether it is stored ``(d_in, d_out)``."""

_Assignment = Mapping[Role, _Part]


def without_groups(layer: Layer) -> tuple[bool, bool]:
    """Return whether a layer lacks its MLP, and its attention, or a part of either."""
    has_mlp = bool(layer.experts or layer.shared_experts) or {Role.UP, Role.DOWN} <= layer.parts.keys()
    has_mixer = bool({Role.SSM_IN, Role.KV_LATENT} & layer.parts.keys())
    return not has_mlp, not (has_mixer or set(ATTENTION_ROLES) <= layer.parts.keys())


def with_structure(anatomy: Anatomy, names: Iterable[str], sizes: ConfigSizes, shape_of: ShapeOf) -> Anatomy:
    """Give roles to unknown matrices in layers that lack attention or an MLP, as far as their structure tells.

    Reads the headers that describe these layers.
    """
    if not anatomy.unplaced or len(anatomy.prefixes) > 1:
        return anatomy
    had_roles = any(not role.is_norm for layer in anatomy.layers for role, _ in layer.all_parts())
    # Names of norms mean different things in different families, so they are no help if no matrix has a known name.
    layers = [layer if had_roles else replace(layer, parts=MappingProxyType({})) for layer in anatomy.layers]
    of_layer = _by_layer(anatomy, names)
    solver = _Solver(anatomy.hidden_size, sizes)
    solved = [solver.solve(layer, of_layer.get(layer.index, {}), anatomy, shape_of) for layer in layers]
    readings: list[tuple[Reading, ...]] = []
    for group, roles in enumerate((MLP_ROLES, ATTENTION_ROLES)):
        counts = {len(options[group]) for options in solved if options[group]}
        if not counts:
            continue
        n_common = counts.pop() if len(counts) == 1 else 1
        empty: Mapping[Role, StoredWeight] = MappingProxyType({})
        readings.append(
            tuple(
                tuple(options[group][at] if options[group] else empty for options in solved) for at in range(n_common)
            )
        )
        layers = [with_roles(layer, parts, roles) for layer, parts in zip(layers, readings[-1][0], strict=True)]
    if not readings:
        return anatomy
    placed_names = {name for layer in layers for part in layer.parts.values() for name in part.tensors}
    note = "some tensors of its layers have unknown names; their shapes decided which is which"
    return replace(
        anatomy,
        layers=tuple(layers),
        unplaced=tuple(name for name in anatomy.unplaced if name not in placed_names),
        decided_by=anatomy.decided_by if had_roles else "shapes",
        readings=tuple(options for options in readings if len(options) > 1),
        notes=anatomy.notes if anatomy.decided_by == "shapes" else (*anatomy.notes, note),
    )


def with_roles(layer: Layer, parts: Mapping[Role, StoredWeight], roles: Iterable[Role]) -> Layer:
    """Return a layer in which ``parts`` replace the parts of a group of ``roles``."""
    if not parts:
        return layer
    own = {role: part for role, part in layer.parts.items() if role not in roles}
    merged = MappingProxyType({**own, **parts})
    return replace(layer, parts=merged, missing=tuple(role for role in layer.missing if role not in merged))


def with_reading(anatomy: Anatomy, reading: Reading) -> Anatomy:
    """Return an anatomy in which one of its readings replaces the first of its group."""
    options = next(options for options in anatomy.readings if any(each is reading for each in options))
    open_roles = {role for each in options for parts in each for role in parts}
    layers = (with_roles(layer, parts, open_roles) for layer, parts in zip(anatomy.layers, reading, strict=True))
    return replace(anatomy, layers=tuple(layers))


def _by_layer(anatomy: Anatomy, names: Iterable[str]) -> dict[int, dict[str, str]]:
    of_layer: dict[int, dict[str, str]] = defaultdict(dict)
    for plain, stored in without_wrappers(names).items():
        split = split_at_layer(plain)
        if split is not None and (split[0] in anatomy.prefixes or not anatomy.prefixes):
            of_layer[split[1]][split[2]] = stored
    return of_layer


class _Solver:
    """Solves each kind of layer once; layers with the same names and shapes are alike."""

    def __init__(self, width: int, sizes: ConfigSizes) -> None:
        self._width, self._sizes = width, sizes
        self._solved: dict[object, tuple[list[_Assignment], list[_Assignment]]] = {}
        stated = (sizes.numbers[key] for key in INTERMEDIATE_SIZE_KEYS if key in sizes.numbers)
        self._inner = next(stated, None)

    def solve(
        self, layer: Layer, stored_names: Mapping[str, str], anatomy: Anatomy, shape_of: ShapeOf
    ) -> tuple[list[Mapping[Role, StoredWeight]], list[Mapping[Role, StoredWeight]]]:
        """Return the possible parts of a layer's MLP, and of its attention."""
        # The reading by shape gives only roles that one shape decides; the structure tells more.
        needs = (True, True) if anatomy.decided_by == "shapes" else without_groups(layer)
        if not any(needs):
            return [], []
        # Known roles of an incomplete group are solved again, together with its unknown matrices.
        again = {
            role for roles, wanted in zip((MLP_ROLES, ATTENTION_ROLES), needs, strict=True) if wanted for role in roles
        }
        known = {name for role, part in layer.parts.items() if role not in again for name in part.tensors}
        unplaced = set(anatomy.unplaced)
        suffixes = {
            suffix: stored
            for suffix, stored in stored_names.items()
            if stored not in known and not (stored in unplaced and self._is_known_name(suffix))
        }
        shapes = {suffix: tuple(shape_of(stored)) for suffix, stored in suffixes.items()}
        matrices = tuple(
            _Stored(suffix, shape)
            for suffix, shape in sorted(shapes.items())
            if len(shape) == 2 and min(shape) > 1 and not _CROSS.search(suffix) and auxiliary_label(suffix) is None
        )
        matrices = _without_repeated(matrices)
        vectors = {suffix: shape[0] for suffix, shape in shapes.items() if len(shape) == 1}
        known_parts = (part for role, part in layer.parts.items() if role not in again and not role.is_norm)
        # Known matrices tell the orientation of the others.
        orientations = {part.transposed for part in known_parts if isinstance(part, WeightPart)} or {False, True}
        key = (needs, matrices, tuple(sorted(vectors.items())), frozenset(orientations))
        if key not in self._solved:
            self._solved[key] = self._options(needs, matrices, vectors, sorted(orientations))
        gains = [suffix for suffix, size in sorted(vectors.items()) if size == self._width and "bias" not in suffix]
        folders = tuple(_folder_of(assignments) for assignments in self._solved[key])
        options: list[list[Mapping[Role, StoredWeight]]] = []
        for at, norm in enumerate((Role.MLP_NORM, Role.ATTENTION_NORM)):
            norms: list[str | None] = [None]
            if norm not in layer.parts and 0 < len(gains) <= MOST_GAINS:
                norms = [*_likely_first(gains, folders[at], folders[1 - at], is_mlp=at == 0), None]
            options.append([
                {
                    **{role: _part(stored_names[part[0]], part) for role, part in assignment.items()},
                    **({} if gain is None else {norm: WeightPart(stored_names[gain])}),
                }
                for gain in norms
                for assignment in self._solved[key][at]
            ])  # fmt: skip
        return options[0], options[1]

    def _is_known_name(self, suffix: str) -> bool:
        """Return whether a name is known, so that the config lacks a number that its layout needs."""
        families = (row.model_types for row in rows_of(suffix) if row.beside is None and row.parts)
        return any(not of_row or self._sizes.architecture in of_row for of_row in families)

    def _options(
        self,
        needs: tuple[bool, bool],
        matrices: tuple[_Stored, ...],
        vectors: Mapping[str, int],
        orientations: Sequence[bool],
    ) -> tuple[list[_Assignment], list[_Assignment]]:
        if not matrices or len(matrices) > MOST_MATRICES:
            return [], []
        found: list[tuple[tuple[int, ...], list[_Assignment], list[_Assignment]]] = []
        for transposed in orientations:
            fit = _n_fitting_biases(matrices, vectors, transposed=transposed)
            for mlp, rest in self._mlps(matrices, transposed=transposed) if needs[0] else [([], matrices)]:
                attention = self._attentions(rest, transposed=transposed) if needs[1] else []
                for folder in _folders(rest) if needs[1] and not attention else ():
                    attention = attention or self._attentions(folder, transposed=transposed)
                if not (mlp or attention):
                    continue
                inner = _rows_of(mlp[0][Role.DOWN], matrices)[1] if mlp else 0
                score = (
                    fit,
                    int(bool(attention) or not rest or not needs[1]),
                    int(self._inner in (None, inner) or not needs[0]),
                    int(_is_one_folder(mlp) and _is_one_folder(attention)),
                    inner,
                )
                found.append((score, mlp, attention))
        if not found:
            return [], []
        best = max(score for score, _, _ in found)
        chosen = [entry for entry in found if entry[0] == best]
        return [option for _, of_mlp, _ in chosen for option in of_mlp], [
            option for _, _, of_attention in chosen for option in of_attention
        ]

    def _mlps(
        self, matrices: tuple[_Stored, ...], *, transposed: bool
    ) -> Iterator[tuple[list[_Assignment], tuple[_Stored, ...]]]:
        """Yield each arrangement of an MLP and the other matrices; an empty one if there may be only attention."""
        shapes = {each.suffix: _turned(each.shape, transposed=transposed) for each in matrices}
        for inner in sorted({shape[1] for shape in shapes.values() if shape[0] == self._width} - {self._width}):
            downs = [name for name, shape in shapes.items() if shape == (self._width, inner)]
            ups = [name for name, shape in shapes.items() if shape == (inner, self._width)]
            fused = [name for name, shape in shapes.items() if shape == (2 * inner, self._width)]
            options: list[_Assignment]
            if len(downs) != 1 or len(ups) > 2 or (ups and fused) or len(fused) > 1 or not (ups or fused):
                continue
            used = {*downs, *ups, *fused}
            rest = tuple(each for each in matrices if each.suffix not in used)
            down: dict[Role, _Part] = {Role.DOWN: (downs[0], None, transposed)}
            if fused:
                options = [
                    {
                        first: (fused[0], FusedRows(groups, (1, 1), 0), transposed),
                        second: (fused[0], FusedRows(groups, (1, 1), 1), transposed),
                        **down,
                    }
                    for groups in (1, "rows")
                    for first, second in ((Role.GATE, Role.UP), (Role.UP, Role.GATE))
                ]
            elif len(ups) == 1:
                options = [{Role.UP: (ups[0], None, transposed), **down}]
            else:
                options = [
                    {Role.GATE: (gate, None, transposed), Role.UP: (up, None, transposed), **down}
                    for gate, up in permutations(ups)
                ]
            yield _as_named(options), rest
        yield [], matrices

    def _attentions(self, matrices: tuple[_Stored, ...], *, transposed: bool) -> list[_Assignment]:
        """Return the arrangements of all ``matrices`` as attention; empty if there is none."""
        options: list[_Assignment] = []
        for order in permutations(matrices) if 2 <= len(matrices) <= 4 else ():
            names = [each.suffix for each in order]
            shapes = [_turned(each.shape, transposed=transposed) for each in order]
            readers, out = shapes[:-1], shapes[-1]
            q = out[1]
            if out[0] != self._width or any(shape[1] != self._width for shape in readers) or not self._fits(q, None):
                continue
            rows = [shape[0] for shape in readers]
            whole: dict[Role, _Part] = {Role.O: (names[-1], None, transposed)}
            if len(rows) == 3 and rows[0] == q and rows[1] == rows[2] <= q and self._fits(q, rows[1]):
                parts = zip((Role.Q, Role.K, Role.V), names, strict=False)
                options.append({role: (name, None, transposed) for role, name in parts} | whole)
            elif len(rows) == 2 and rows[0] == q and rows[1] % 2 == 0 and rows[1] <= 2 * q:
                kv = rows[1] // 2
                layouts = self._layouts((Role.K, Role.V), (kv, kv)) if self._fits(q, kv) else ()
                whole[Role.Q] = (names[0], None, transposed)
                options += [
                    {role: (names[1], layout, transposed) for role, layout in each.items()} | whole for each in layouts
                ]
            elif len(rows) == 1 and q < rows[0] <= 3 * q and (rows[0] - q) % 2 == 0:
                kv = (rows[0] - q) // 2
                layouts = self._layouts((Role.Q, Role.K, Role.V), (q, kv, kv)) if self._fits(q, kv) else ()
                options += [
                    {role: (names[0], layout, transposed) for role, layout in each.items()} | whole for each in layouts
                ]
        return _as_named(options)

    def _fits(self, q: int, kv: int | None) -> bool:
        """Return whether these numbers of rows fit the heads that the config states, if it does."""
        if kv is not None and q % kv:
            return False
        width, heads = self._sizes.width_of_head, self._sizes.heads
        if width is None or heads is None:
            return True
        return q == heads.n_heads * width and kv in (None, heads.n_kv_heads * width)

    def _layouts(self, roles: tuple[Role, ...], rows: tuple[int, ...]) -> Iterator[dict[Role, Layout | None]]:
        """Yield the layouts of a fused projection: one weight after another, or group by group of heads."""
        kv, width = rows[-1], self._sizes.width_of_head
        widths = HEAD_WIDTHS if width is None or self._sizes.heads is None else {width}
        groups = sorted({kv // each for each in widths if kv % each == 0 and kv // each > 1})
        for n_groups in (1, *groups):
            shares = tuple(n // n_groups for n in rows)
            yield {role: FusedRows(n_groups, shares, at) for at, role in enumerate(roles)}


def _without_repeated(matrices: tuple[_Stored, ...]) -> tuple[_Stored, ...]:
    """Leave out matrices that differ only in a number, as experts do."""
    alike = Counter((_NUMBER.sub("0", each.suffix), each.shape) for each in matrices)
    return tuple(each for each in matrices if alike[_NUMBER.sub("0", each.suffix), each.shape] == 1)


def _folders(matrices: Iterable[_Stored]) -> list[tuple[_Stored, ...]]:
    """Group matrices by the first component of their names; a single group is left out, as it is no choice."""
    folders: dict[str, list[_Stored]] = defaultdict(list)
    for each in matrices:
        folders[each.suffix.partition(".")[0]].append(each)
    return [tuple(members) for members in folders.values()] if len(folders) > 1 else []


def _folder_of(assignments: Sequence[_Assignment]) -> str:
    """Return the first component of the names of a group's matrices, or an empty string if they differ."""
    names = {name.partition(".")[0] for assignment in assignments for name, _, _ in assignment.values()}
    return names.pop() if len(names) == 1 else ""


def _likely_first(gains: Sequence[str], folder: str, other_folder: str, *, is_mlp: bool) -> list[str]:
    """Sort norms by how likely they are the one before a group: those named like its folder, then by their order."""

    def is_named(gain: str, folder: str) -> bool:
        return bool(folder) and gain.startswith(folder[:3])

    in_order = sorted(gains, reverse=is_mlp)  # the norm before attention comes first
    return sorted(in_order, key=lambda gain: (not is_named(gain, folder), is_named(gain, other_folder)))


def _part(stored: str, part: _Part) -> WeightPart:
    return WeightPart(stored, part[1], part[2])


def _turned(shape: Shape, *, transposed: bool) -> Shape:
    return shape[::-1] if transposed else shape


def _rows_of(part: _Part, matrices: Sequence[_Stored]) -> Shape:
    return next(_turned(each.shape, transposed=part[2]) for each in matrices if each.suffix == part[0])


def _n_fitting_biases(matrices: Iterable[_Stored], vectors: Mapping[str, int], *, transposed: bool) -> int:
    """Count the matrices whose bias has as many entries as this orientation gives outputs."""
    biases = ((each, vectors.get(each.suffix.removesuffix("weight") + "bias")) for each in matrices)
    return sum(_turned(each.shape, transposed=transposed)[0] == size for each, size in biases if size is not None)


def _is_one_folder(assignments: Sequence[_Assignment]) -> bool:
    names = {name for assignment in assignments for name, _, _ in assignment.values()}
    return len({name.partition(".")[0] for name in names}) <= 1


def _as_named(options: Sequence[_Assignment]) -> list[_Assignment]:
    """Return the assignments that contradict no name, or all if names contradict each of them."""
    agreeing = [option for option in options if all(_agrees(role, part[0], option) for role, part in option.items())]
    return agreeing or list(options)


def _agrees(role: Role, suffix: str, assignment: _Assignment) -> bool:
    words = set(_WORDS.split(suffix.removesuffix(".weight").rpartition(".")[2]))
    named = {each for each in assignment if words & _NAMED[each]}
    return not named or role in named
