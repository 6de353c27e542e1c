"""Check roles by value, for any family: compare the placed roles with one forward pass.

Vectors are compared by direction, because everything here is known up to a factor per token (temperatures, norms,
weights of experts). Two independent vectors of these widths never agree in direction to 1e-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from transformers.activations import ACT2FN

from mdir_hf.model.roles import Anatomy, HeadCounts, Layer, Role, read_experts, read_part
from mdir_hf.model.roles.parts import StoredWeight, WeightProduct
from mdir_hf.model.sources import TensorSource
from tests.model.roles.forward_record import AttentionCall, ForwardRecord

APART = 1e-8
"""A smaller 1 - cos is rounding: float32 sums of a few hundred products are accurate to 1e-5, squared and halved."""

_MLP = (Role.GATE, Role.UP, Role.DOWN)


@dataclass
class Judgement:
    """Result for the roles of one model.

    Attributes:
        proved: For each layer of the anatomy, the roles that the forward pass confirmed.
        wrong: Sentences about placed roles that were not confirmed.
        gaps: Sentences about unplaced weights.
        n_attention: Number of recorded attentions, and how many of them have their values among the layers.
    """

    proved: list[set[Role]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    n_attention: tuple[int, int] = (0, 0)


def judge(anatomy: Anatomy, source: TensorSource, record: ForwardRecord) -> Judgement:
    """Check every placed role of every layer against the record."""
    found = Judgement()
    seen: list[int] = []
    for layer in anatomy.layers:
        proved: set[Role] = set()
        _judge_attention(layer, anatomy, source, record, found, proved, seen)
        groups = ((" ", [_dense_mlp(layer)]), (" expert ", layer.experts), (" shared expert ", layer.shared_experts))
        for label, parts in groups:
            _judge_mlps(f"layer {layer.index}{label}", parts, layer, anatomy, source, record, found, proved)
        found.proved.append(proved)
    if seen != sorted(seen):
        found.wrong.append(f"attentions of the layers come in the order {seen}")
    found.n_attention = (len(record.attention), sum(len(_together(record, at)) for at in set(seen)))
    return found


def _judge_attention(layer, anatomy, source, record, found, proved, seen) -> None:
    heads = layer.heads or (anatomy.n_heads and HeadCounts(anatomy.n_heads, anatomy.n_kv_heads))
    inputs: dict[Role, torch.Tensor] = {}
    at: int | None = None
    for role in (Role.V, Role.Q, Role.K):
        part = layer.parts.get(role)
        if part is None:
            continue
        calls = list(enumerate(record.attention)) if at is None else [(at, record.attention[at])]
        for number, call in calls:
            if role is Role.V:
                call = replace(call, v=_values(_together(record, number)))
            x = _projected(role, part, layer, source, record, call, heads)
            if x is not None:
                at = number
                inputs[role] = x
                proved.add(role)
                break
        else:
            found.wrong.append(f"layer {layer.index}: {role.value} ({part.tensor}) is not what attention was given")
    if at is None and Role.O in layer.parts:
        weight = read_part(source, layer.parts[Role.O]).double()
        if any(_reads_heads(weight, [call], record, ()) for call in record.attention):
            proved.add(Role.O)
        else:
            found.wrong.append(
                f"layer {layer.index}: o ({layer.parts[Role.O].tensor}) does not read what attention returns"
            )
    if at is not None:
        seen.append(at)
        call = record.attention[at]
        if heads is not None and call.heads is not None:  # linear attention heads are not counted
            n_kv = len(_distinct(_values(_together(record, at))))
            if len(call.q) != heads.n_heads or n_kv != heads.n_kv_heads:
                found.wrong.append(
                    f"layer {layer.index}: {heads.n_heads}/{heads.n_kv_heads} heads, attention has {len(call.q)}/{n_kv}"
                )
        part = layer.parts.get(Role.O)
        if part is not None:
            if _reads_heads(read_part(source, part).double(), _together(record, at), record, inputs.values()):
                proved.add(Role.O)
            else:
                found.wrong.append(f"layer {layer.index}: o ({part.tensor}) does not read what attention returns")
    latent, value = layer.parts.get(Role.KV_LATENT), layer.parts.get(Role.V)
    if latent is not None and latent != (value.right if isinstance(value, WeightProduct) else None):
        found.wrong.append(f"layer {layer.index}: kv_latent ({latent.tensor}) is not the inner factor of v")
    queries, keys = (layer.parts.get(role) for role in (Role.Q, Role.K))
    is_latent = latent is not None and queries is not None and keys is not None
    if is_latent and len(read_part(source, queries)) != len(read_part(source, keys)):  # neither has rotated rows
        found.wrong.append(f"layer {layer.index}: q ({queries.tensor}) has other rows than k")
    for x in inputs.values():
        _judge_norm(Role.ATTENTION_NORM, layer, x, anatomy, source, record, found, proved)


def _projected(role, part, layer, source, record, call, heads) -> torch.Tensor | None:
    """Return the input of a projection whose output is the input of attention, or None."""
    given = getattr(call, role.value)
    is_key_too = role is Role.V and layer.parts.get(Role.K) == part  # the keys' norm applies then
    gain = layer.parts.get(Role.K_NORM if role is Role.V else Role(f"{role.value}_norm"))
    gain = gain if role is not Role.V or is_key_too else None
    scale = None if gain is None else read_part(source, gain).double()
    _check_some_rows(part, source)
    if isinstance(part, WeightProduct):
        left, right = (_with_both_halves(source, factor) for factor in (part.left, part.right))
        middle = record.entered.get(left.shape[1])
        if middle is None:
            return None
        for z in middle:
            if not _same_heads(left @ z, given, heads, role, None):
                continue
            scaled = right if part.gain is None else right * read_part(source, part.gain).double()[:, None]
            for x in record.entered.get(right.shape[1], ()):
                if len(scaled) == len(z) and _apart(scaled @ x, z) < APART:
                    return x
                # After and before the norm, side by side; each is known up to its own factor for the token.
                both = zip((scaled, right), z.reshape(2, -1), strict=True) if part.left.first_half else ()
                if both and all(_apart(factor @ x, half) < APART for factor, half in both):
                    return x
        return None
    weight = _with_both_halves(source, part)
    for x in record.entered.get(weight.shape[1], ()):
        if _same_heads(weight @ x, given, heads, role, scale):
            return x
    return None


def _with_both_halves(source, part) -> torch.Tensor:
    """The weight, with both halves if it reads two vectors side by side."""
    weight = read_part(source, part).double()
    if not part.first_half:
        return weight
    whole = read_part(source, replace(part, first_half=False)).double()
    assert torch.equal(weight, whole[..., : whole.shape[-1] // 2])
    return whole


def _check_some_rows(part, source) -> None:
    """Check that rows read separately equal rows of the whole weight."""
    weight = read_part(source, part)
    rows = np.array([len(weight) - 1, 0, len(weight) // 2])
    alone = read_part(source, part, rows)
    # Products of fewer rows may be summed in a different order.
    rtol = 1e-9 if isinstance(part, WeightProduct) else 0.0
    torch.testing.assert_close(alone, weight[rows], rtol=rtol, atol=rtol * float(weight.abs().max()))


def _same_heads(made, given, heads, role, scale) -> bool:
    """Whether two sets of head vectors agree, up to repeated heads, a part of each head, and a norm."""
    n_given, width = given.shape
    if made.numel() % width == 0 and n_given % (made.numel() // width) == 0:
        n = made.numel() // width
    elif heads is not None and made.numel() % (n := heads.n_heads if role is Role.Q else heads.n_kv_heads) == 0:
        if n_given % n:
            return False
    else:
        return False
    made = made.reshape(n, -1)
    size = made.shape[1]
    if size > width:
        return False
    for heads_given in (given[:: n_given // n], given[:n]):  # each repeated, or all of them
        for start in {0, width - size}:
            piece = heads_given[:, start : start + size]
            if _apart(made, piece) < APART or _apart_each(made, piece) < APART:
                return True
    given = given[:: n_given // n]
    if scale is None or scale.numel() not in (width, n * width):
        return False
    scale = scale.reshape(-1, width)
    for factor in (scale, 1 + scale):
        for axis in (1, None):
            mean = made.mean() if axis is None else made.mean(dim=1, keepdim=True)
            for shifted in (made, made - mean):
                if (_apart if axis is None else _apart_each)(shifted * factor, given) < APART:
                    return True
    return False


def _together(record: ForwardRecord, at: int) -> list[AttentionCall]:
    """This attention and the following ones with the same queries, whose difference is taken."""
    calls = [record.attention[at]]
    for call in record.attention[at + 1 :]:
        if call.heads is None or calls[0].heads is None or not torch.equal(call.q, calls[0].q):
            break
        calls.append(call)
    return calls


def _values(calls: list[AttentionCall]) -> torch.Tensor:
    """Values of attentions that belong together: unchanged for one attention, each value once for several."""
    return calls[0].v if len(calls) == 1 else torch.cat([_distinct(call.v) for call in calls])


def _distinct(heads: torch.Tensor) -> torch.Tensor:
    """Heads without repetitions, in order."""
    kept: list[torch.Tensor] = []
    for head in heads:
        if not any(torch.allclose(head, other, rtol=1e-5, atol=1e-7) for other in kept):
            kept.append(head)
    return torch.stack(kept)


def _reads_heads(weight, calls: list[AttentionCall], record: ForwardRecord, inputs: Iterable[torch.Tensor]) -> bool:
    """Whether a weight reads the output of attention, possibly after a gate or norm that preserves signs."""
    n, left = weight.shape[1], record.left.get(weight.shape[0])
    candidates = record.entered.get(n)
    if candidates is None or left is None:
        return False
    (heads, *others), width = [call.heads for call in calls], calls[0].v.shape[1]
    if heads is None:  # linear attention: the product whose input is neither the stream nor another input
        is_new = [all(len(x) != n or _apart(x, y) > APART for x in inputs) for y in candidates]
        candidates = candidates[is_new]
    elif others:  # each head is a combination of all returned heads
        returned = torch.cat([one.reshape(-1, width) for one in (heads, *others)])
        candidates = candidates[[n % width == 0 and _is_spanned(y.reshape(-1, width), returned) for y in candidates]]
    elif heads.numel() != n:
        return False
    else:
        candidates = candidates[((candidates > 0) == (heads > 0)).all(dim=1)]
    return any(_is_among(weight @ y, left) for y in candidates)


def _is_spanned(rows: torch.Tensor, basis: torch.Tensor) -> bool:
    """Whether rows are linear combinations of fewer other rows."""
    if len(basis) >= basis.shape[1]:
        return False
    rest = rows - rows @ torch.linalg.pinv(basis) @ basis
    return float(rest.norm()) < 1e-4 * float(rows.norm())


def _dense_mlp(layer: Layer) -> dict[Role, StoredWeight]:
    return {role: layer.parts[role] for role in _MLP if role in layer.parts}


def _judge_mlps(label, parts, layer, anatomy, source, record, found, proved) -> None:
    """Judge the MLP of a layer or its experts."""
    silent: list[str] = []
    n_proved = 0
    for number, weights in enumerate(read_experts(source, parts)):
        if not weights:
            continue
        mlp = {role: weight.double() for role, weight in weights.items()}
        name = label.strip() + (f" {number}" if len(parts) > 1 else "")
        if Role.UP not in mlp or Role.DOWN not in mlp:
            found.gaps.append(f"{name}: of the MLP only {', '.join(role.value for role in mlp)}")
            continue
        x = _mlp_input(mlp, record)
        if x is None:
            silent.append(f"{name}: {', '.join(role.value for role in mlp)}")
            continue
        n_proved += 1
        proved.update(mlp)
        _judge_norm(Role.MLP_NORM, layer, x, anatomy, source, record, found, proved)
    if n_proved:  # a router chooses among experts, and all experts are split alike
        found.gaps += [f"{sentence} were not asked" for sentence in silent]
    else:
        found.wrong += [f"{sentence} do not make the output of an MLP" for sentence in silent]


def _mlp_input(mlp, record) -> torch.Tensor | None:
    up, down, gate = mlp[Role.UP], mlp[Role.DOWN], mlp.get(Role.GATE)
    entered, left = record.entered.get(down.shape[1]), record.left.get(down.shape[0])
    if entered is None or left is None or up.shape[1] not in record.entered:
        return None
    outputs = entered @ down.T
    entered = entered[[_is_among(y, left) for y in outputs]]
    normed = [call for call in record.norms if len(call.made) == down.shape[1] and _is_among(call.made, entered)]
    if normed:  # a norm between the neurons and the next matrix
        entered = torch.cat([entered, *(call.given[None] for call in normed)])
    for x in record.entered[up.shape[1]]:
        u, g = up @ x, None if gate is None else gate @ x
        if any(_is_among(inner, entered) for inner in _inner(g, u, record)):
            return x
    return None


def _inner(gate: torch.Tensor | None, up: torch.Tensor, record: ForwardRecord) -> Iterable[torch.Tensor]:
    for act in (*_ACTIVATIONS.values(), *record.activations):
        yield act(up) if gate is None else act(gate) * up
    if gate is not None:
        yield gate * torch.sigmoid(1.702 * gate) * (up + 1)  # gpt-oss
        yield 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)  # Inkling 2


_ACTIVATIONS = {
    name: ACT2FN[name] for name in ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu")
}


def _judge_norm(role, layer, x, anatomy, source, record, found, proved) -> None:
    """Check that the norm before a weight is the one whose output the weight reads."""
    part = layer.parts.get(role)
    norms = [call for call in record.norms if len(call.made) == len(x)]
    feeding = [call for call in norms if _apart(call.made, x) < APART] or [
        call
        for call in norms
        if bool(((x / call.made > 0) & (x / call.made < 1)).all())  # after a per-channel gate
    ]
    if part is None:
        # If the norm's output is the residual stream itself, there is nothing to fold.
        if feeding and not _is_among(x, record.added[len(x)]):
            found.gaps.append(f"layer {layer.index}: the norm in front is not placed as {role.value}")
        return
    scale = _with_both_halves(source, part)
    calls = [call for call in feeding if torch.equal(call.scale, scale)]
    if not calls:
        found.wrong.append(f"layer {layer.index}: {role.value} ({part.tensor}) does not stand in front")
        return
    given = calls[0].given
    factor = 1 + scale if anatomy.norms_add_one else scale
    made = calls[0].made
    if min(_apart(given * factor, made), _apart((given - given.mean()) * factor, made)) > APART:
        found.wrong.append(f"layer {layer.index}: {role.value} does not multiply as norms_add_one says")
        return
    proved.add(role)


def _is_among(vector: torch.Tensor, rows: torch.Tensor) -> bool:
    norms = rows.norm(dim=1) * vector.norm()
    return bool(((rows @ vector) >= (1 - APART) * norms.clamp(min=1e-300)).any())


def _apart(first: torch.Tensor, second: torch.Tensor) -> float:
    a, b = first.reshape(-1), second.reshape(-1)
    return 1.0 - float(a @ b / (a.norm() * b.norm()).clamp(min=1e-300))


def _apart_each(first: torch.Tensor, second: torch.Tensor) -> float:
    return max(_apart(a, b) for a, b in zip(first, second.expand_as(first), strict=True))
