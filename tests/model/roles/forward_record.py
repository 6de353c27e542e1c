"""Record one forward pass of one token, below the level of modules.

Every product with a weight gives its input and its output; every attention gives its queries, keys and values. Names
are not used, so a test can determine the function of a weight independently of its name. The token stands at position
0, where rotary positions have no effect, and with a single key every attention weight is one.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

TOKEN = 5


@dataclass
class AttentionCall:
    """One attention, ``(heads, width)`` each; keys and values may be repeated for every query head."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    heads: torch.Tensor | None
    """Its output, ``(heads * width,)``, replaced by noise if possible, so that its readers are visible. None for linear
    attention, which scales and normalises its values."""


@dataclass
class NormCall:
    """One norm: its scale, its input and its output, ``(width,)`` each."""

    scale: torch.Tensor
    given: torch.Tensor
    made: torch.Tensor


@dataclass
class ForwardRecord:
    """Record of one forward pass; vectors by their width, ``(n, width)`` float64."""

    entered: dict[int, torch.Tensor]
    left: dict[int, torch.Tensor]
    added: dict[int, torch.Tensor]
    """Terms of sums, including the residual stream."""
    attention: list[AttentionCall]
    norms: list[NormCall]
    activations: list[Callable[[torch.Tensor], torch.Tensor]]
    """Activation functions of the model, possibly with parameters."""


def record_forward(
    model: torch.nn.Module, *, tokens: tuple[int, ...] = (TOKEN,), more_tokens: Iterable[int] = (), **inputs: Any
) -> ForwardRecord:
    """Run a model on one token, or on several, and record it.

    Args:
        model: The model.
        tokens: Input tokens; for each attention the last one is recorded.
        more_tokens: Further tokens, each run alone, for products and norms, so that experts are recorded that the first
            token is not routed to.
        inputs: Further inputs of the model.
    """
    recording = _Recording(model)
    AttentionInterface.register("recording", recording.attend)
    AttentionMaskInterface.register("recording", eager_mask)
    switched = _switch_attention(model)
    handles = [
        m.register_forward_pre_hook(recording.backend, with_kwargs=True)
        for m in model.modules()
        if type(m).__name__.endswith("Backend")
    ]
    handles += [m.register_forward_hook(recording.norm) for m in model.modules() if _scale_of(m) is not None]
    try:
        with (
            torch.no_grad(),
            recording,
            warnings.catch_warnings(),
            _without_convolutions(model, recording),
            ExitStack() as stack,
        ):
            warnings.simplefilter("ignore")
            if len(tokens) == 1:  # a model with patches makes two of one byte
                stack.enter_context(_without_positions(model))
            model(torch.tensor([tokens]), use_cache=False, **inputs)
            recording.is_done_with_attention = True
            for token in more_tokens:
                model(torch.tensor([[token]]), use_cache=False, **inputs)
    finally:
        for handle in handles:
            handle.remove()
        for config, before in switched:
            config._attn_implementation = before
    return recording.finish()


def is_norm(module: torch.nn.Module) -> bool:
    """Whether a module is a norm with a scale, judged by its only parameters."""
    return _scale_of(module) is not None


def _scale_of(module: torch.nn.Module) -> torch.nn.Parameter | None:
    own = dict(module.named_parameters(recurse=False))
    is_one = own.keys() <= {"weight", "bias"} and "weight" in own and own["weight"].dim() == 1
    return own["weight"] if is_one and re.search("norm", type(module).__name__, re.IGNORECASE) else None


def _switch_attention(model: torch.nn.Module) -> list[tuple[Any, str]]:
    """Replace the attention of every module that uses the attention interface by ours."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    for config, _ in before:
        config._attn_implementation = "recording"
    return before


@contextmanager
def _without_convolutions(model: torch.nn.Module, recording: _Recording) -> Iterator[None]:
    """Record linear attention, and remove the preceding per-channel convolution so that projections are visible."""
    code = sys.modules[type(model).__module__]
    own = {name: getattr(code, name) for name in (*_RECURRENCES, "causal_conv1d_fn") if hasattr(code, name)}
    if own.keys() & set(_RECURRENCES):
        for name, function in own.items():
            replacement = recording.recurrence(function) if name in _RECURRENCES else _identity
            setattr(code, name, replacement)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(code, name, function)


@contextmanager
def _without_positions(model: torch.nn.Module) -> Iterator[None]:
    """Disable rotary positions, so that they have no effect at any position."""
    frequencies = [(buffer, buffer.clone()) for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    try:
        for buffer, _ in frequencies:
            buffer.zero_()
        yield
    finally:
        for buffer, before in frequencies:
            buffer.copy_(before)


_RECURRENCES = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")


def _identity(x, *_, **__):
    return x


class _Recording(TorchFunctionMode):
    """Intercepts every torch function that is called while it is active."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._entered: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._left: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._added: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._activations = [m for m in model.modules() if type(m).__module__ == "transformers.activations"]
        self._scores: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._attention: list[AttentionCall] = []
        self._norms: list[NormCall] = []
        self._rng = torch.Generator().manual_seed(3)
        self.is_done_with_attention = False
        self._is_inside = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.conv1d:
            x, weight = (args[at] if at < len(args) else kwargs[name] for at, name in enumerate(("input", "weight")))
            if weight.shape[1] == 1:  # per channel: without it, the projections are visible
                return _without_convolution(x, func(*args, **kwargs))
        made = func(*args, **kwargs)
        factors = _factors(func, args, kwargs)
        if factors is not None and made.numel():
            self._product(*factors, made, is_einsum=func is torch.einsum)
        elif func is F.scaled_dot_product_attention and args[1] is not args[2]:  # otherwise it does not project
            self._attended(*args[:3], made)
        elif func in _SUMS and made.numel() > 1:
            for term in args[:2]:
                if isinstance(term, torch.Tensor) and term.shape == made.shape:
                    self._added[term.shape[-1]].append(_heads(term))
        return made

    def _attended(self, q, k, v, made):
        if not self.is_done_with_attention:
            last = (_heads(x[..., -1:, :] if x.dim() == 4 else x) for x in (q, k, v))  # the last of several tokens
            self._attention.append(AttentionCall(*last, _flat(made)))

    def attend(self, module, query, key, value, *_, **__):
        """Replace an attention: record its inputs and return noise."""
        batch, n_heads, n_tokens = query.shape[:3]
        noise = torch.randn(batch, n_tokens, n_heads, value.shape[-1], generator=self._rng)
        self._attended(query, key, value, noise[:, -1:])
        return noise.to(value.dtype), None

    def recurrence(self, function):
        """Wrap a linear attention with inputs of shape (batch, tokens, heads, width)."""

        def wrapped(query, key, value, *args, **kwargs):
            if not (self.is_done_with_attention or self._is_inside):
                last = (_heads(x[:, -1]) for x in (query, key, value))
                self._attention.append(AttentionCall(*last, None))
            before, self._is_inside = self._is_inside, True  # one recurrence may call another
            try:
                return function(query, key, value, *args, **kwargs)
            finally:
                self._is_inside = before

        return wrapped

    def backend(self, module, args, kwargs):
        """Record a linear attention module with inputs of shape (batch, heads, tokens, width)."""
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        if not self.is_done_with_attention:
            last = (_heads(given[name][:, :, -1]) for name in ("query", "key", "value"))
            self._attention.append(AttentionCall(*last, None))

    def norm(self, module, args, made):
        if isinstance(made, torch.Tensor) and args:
            scale = _scale_of(module).detach().double()
            rows = zip(args[0].double().reshape(-1, len(scale)), made.double().reshape(-1, len(scale)), strict=False)
            self._norms += [NormCall(scale, given, out) for given, out in rows]

    def _product(self, x, y, made, *, is_einsum):
        if self._is_weight(y) or self._is_weight(x):
            vector = x if self._is_weight(y) else y.transpose(-1, -2)
            for place, tensor in ((self._entered, vector), (self._left, made)):
                rows = tensor.detach().double().reshape(-1, tensor.shape[-1])
                place[rows.shape[1]].append(rows)
                if len(rows) > 1:
                    place[rows.numel()].append(rows.reshape(1, -1))
        elif self._is_inside:
            return
        elif made.shape[-1] == y.shape[-1] and _are_shares(x) and (scores := self._scores_of(x)) is not None:
            q, k = scores
            if is_einsum:  # one token: heads may be on any axis but the last
                q, k, y, made = (_heads(tensor) for tensor in (q, k, y, made))
            self._attended(q, k, y, made[..., -1:, :] if made.dim() == 4 else made)
            self._scores = []
        else:
            self._scores.append((x, y if is_einsum else y.transpose(-1, -2), made.numel()))

    def _scores_of(self, shares):
        """Return the factors of the scores behind these shares; rotary angles are products of vectors of width one."""
        found = [(q, k) for q, k, n in self._scores if n == shares.numel() and q.shape[-1] > 1]
        return found[0] if found else None

    def _is_weight(self, tensor):
        return tensor.untyped_storage().data_ptr() in self._weights

    def finish(self) -> ForwardRecord:
        places = (self._entered, self._left, self._added)
        entered, left, added = ({n: torch.cat(rows) for n, rows in place.items()} for place in places)
        return ForwardRecord(entered, left, added, self._attention, self._norms, self._activations)


_PRODUCTS = {
    F.linear: (0, 1),
    torch.matmul: (0, 1),
    torch.Tensor.matmul: (0, 1),
    torch.Tensor.__matmul__: (0, 1),
    torch.mm: (0, 1),
    torch.Tensor.mm: (0, 1),
    torch.bmm: (0, 1),
    torch.Tensor.bmm: (0, 1),
    torch.addmm: (1, 2),
    torch.baddbmm: (1, 2),
    torch.Tensor.baddbmm: (1, 2),
}


_SUMS = (torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__iadd__)


def _factors(func, args, kwargs):
    if func is torch.einsum and len(args) == 3:
        return args[1:]
    places = _PRODUCTS.get(func)
    if places is None:
        return None
    if func in (torch.baddbmm, torch.Tensor.baddbmm) and "batch1" in kwargs:
        return kwargs["batch1"], kwargs["batch2"]
    if max(places) >= len(args):
        return (args[0], kwargs["weight"]) if "weight" in kwargs else None
    return tuple(args[place] for place in places)


def _without_convolution(x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    n_more = made.shape[-1] - x.shape[-1]
    return F.pad(x, (0, n_more)) if n_more >= 0 else x[..., -n_more:]


def _are_shares(tensor: torch.Tensor) -> bool:
    """Whether rows look like attention weights."""
    return bool((tensor >= 0).all()) and bool((tensor.sum(dim=-1) - 1).abs().max() < 1e-5)


def _heads(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().double().reshape(-1, tensor.shape[-1])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().double().reshape(-1)
