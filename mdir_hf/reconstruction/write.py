"""Write the candidate in the reference's basis, or an aligned model in its original basis.

One tensor is in memory at a time. An unknown tensor raises an error before anything is written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from mdir_hf.errors import InputError, ReconstructionError
from mdir_hf.model.files.decode import DTYPES, NAME_OF_TORCH_DTYPE
from mdir_hf.model.opened import CONFIG, MAX_CONFIG_N_BYTES, Model
from mdir_hf.model.roles import Role
from mdir_hf.reconstruction.explained import Explained, explained_share
from mdir_hf.reconstruction.places import (
    StreamTransform,
    TensorPlace,
    expert_order,
    mapped_weight,
    plan_places,
    rows_of,
)
from mdir_hf.reconstruction.records import MlpMap, Reconstruction
from mdir_hf.reconstruction.shards import Planned, ShardWriter

SIDE_FILES = frozenset(
    {
        *("generation_config.json", "chat_template.jinja", "chat_template.json", "preprocessor_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
        *("vocab.json", "vocab.txt", "merges.txt", "added_tokens.json"),
    }
)
"""Files other than weights that are copied unchanged to an aligned model."""

EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps")
"""Config keys for the epsilon of norms."""

SPARE_DISK = 64 << 20

BLOCK_ROWS = 4096

OnBytes = Callable[[int, int], None]
"""Callback that receives the number of bytes written and the total."""


@dataclass(frozen=True, slots=True)
class Written:
    """The files of an aligned model.

    Attributes:
        n_bytes: Size of all tensors.
        explained: The share of each tensor that the reference explains, in file order.
        notes: Sentences for the user.
    """

    folder: Path
    n_bytes: int
    explained: tuple[Explained, ...]
    notes: tuple[str, ...]


def write_model(
    model: Model,
    reconstruction: Reconstruction,
    folder: Path,
    *,
    reference: Model | None = None,
    is_inverse: bool = False,
    on_bytes: OnBytes | None = None,
) -> Written:
    """Write a model in the reference's basis as safetensors, with its config and tokenizer files.

    The result has the same logits, up to rounding. With ``is_inverse``, an aligned model is mapped back to its
    original basis. The folder must be empty or new. If ``reference`` is given, each tensor is compared with it.

    Raises:
        ReconstructionError: If a tensor has no known place or the transformation cannot be applied exactly.
        InputError: If the folder is not empty or the disk has too little space.
    """
    _check(model, reconstruction)
    plan = plan_places(model)
    stream = StreamTransform(reconstruction, is_inverse)
    is_rotated = reconstruction.stream.outer.kind == "rotation"
    is_tied = model.anatomy.unembedding is None and model.anatomy.tied
    untied = _head_name(model, reference) if is_tied and is_rotated else None
    config, notes = _config(model, stream, is_untied=untied is not None)
    shards = _shards(model, untied)
    total = sum(tensor.n_bytes for tensors in shards.values() for tensor in tensors)
    _make_folder(folder, total)
    explained: list[Explained] = []
    n_bytes_written = 0
    writer_of = _Tensors(model, reconstruction, stream, plan, untied=untied, is_tied=is_tied)
    for file, tensors in shards.items():
        with ShardWriter(folder / file, tensors) as writer:
            for tensor in tensors:
                values = writer_of.tensor(tensor.name)
                if reference is not None and values.is_floating_point():
                    places = plan.get(tensor.name, ())
                    share = explained_share(
                        values, tensor.name, places, model, reference, reconstruction, is_head=tensor.name == untied
                    )
                    explained.append(Explained(tensor.name, share))
                writer.write(tensor.name, values)
                n_bytes_written += tensor.n_bytes
                if on_bytes is not None:
                    on_bytes(n_bytes_written, total)
    _write_side_files(model, folder, config, shards, total)
    return Written(folder, total, tuple(explained), tuple(notes))


def _check(model: Model, reconstruction: Reconstruction) -> None:
    outer = reconstruction.stream.outer
    label = model.label
    quantization = model.tensors.description.quantization
    if quantization is not None:
        raise ReconstructionError(
            f"its weights are quantised ({quantization}); a transformed weight has no such codes. Save it in 16 bits "
            "first",
            subject=label,
        )
    if len(model.anatomy.layers) != len(reconstruction.layers):
        raise ReconstructionError(
            f"it has {len(model.anatomy.layers)} layers, and the reconstruction is of a model of "
            f"{len(reconstruction.layers)}",
            subject=label,
        )
    if model.anatomy.hidden_size != outer.n_candidate:
        raise ReconstructionError(
            f"its residual stream has {model.anatomy.hidden_size} channels, and the reconstruction is of a model of "
            f"{outer.n_candidate}",
            subject=label,
        )
    if outer.matrix is not None:
        gram = outer.matrix @ outer.matrix.T
        error = float((gram - torch.eye(len(gram), dtype=gram.dtype)).abs().max())
        if error > 1e-6:
            raise ReconstructionError(
                f"the rotation that was fitted is not orthogonal (error {error:.1e}): too few common tokens for "
                f"{outer.n_candidate} channels",
                subject=label,
            )
    has_out_norms = any(
        role in layer.parts for layer in model.anatomy.layers for role in (Role.ATTENTION_OUT_NORM, Role.MLP_OUT_NORM)
    )
    if outer.kind == "rotation" and has_out_norms:
        raise ReconstructionError(
            "it has norms with gains behind attention or the MLP, which do not commute with a rotation", subject=label
        )
    if any(part for layer in model.anatomy.layers for role, part in layer.parts.items() if role in (Role.SSM_IN,)):
        raise ReconstructionError("it has state-space mixers, which are not aligned yet", subject=label)
    if model.anatomy.rope == "unknown" and any(
        layer.attention is not None and layer.attention.keys is not None and layer.attention.keys.matrices is not None
        for layer in reconstruction.layers
    ):
        raise ReconstructionError(
            "its queries and keys were turned, and it is unknown how rotary positions pair their rows", subject=label
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Tensors:
    model: Model
    reconstruction: Reconstruction
    stream: StreamTransform
    plan: Mapping[str, tuple[TensorPlace, ...]]
    untied: str | None
    is_tied: bool

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of the aligned model in its stored dtype."""
        if name == self.untied:
            embedding = self.model.anatomy.embedding
            assert embedding is not None
            return self._by_blocks(self._stored(embedding.tensor), self._headed)
        stored = self._stored(name)
        places = self.plan[name]
        if not places:
            return stored
        if places[0].kind in ("written", "head"):
            return self._by_blocks(stored, self.stream.written if places[0].kind == "written" else self._headed)
        values = stored.to(_exact(stored.dtype)).clone()
        for place in places:
            self._apply(values, place, name)
        return values.to(stored.dtype)

    def _headed(self, rows: torch.Tensor) -> torch.Tensor:
        return self.stream.read(rows, self.reconstruction.final_gain)

    def _by_blocks(self, stored: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        result = torch.empty_like(stored)
        for start in range(0, len(stored), BLOCK_ROWS):
            result[start : start + BLOCK_ROWS] = change(stored[start : start + BLOCK_ROWS].to(_exact(stored.dtype)))
        return result

    def _stored(self, name: str) -> torch.Tensor:
        read_stored = getattr(self.model.tensors, "read_stored", None)
        if read_stored is not None:
            stored: torch.Tensor = read_stored(name)
            return stored
        dtype = DTYPES[self.model.tensors.spec(name).dtype].torch_dtype
        return self.model.tensors.read(name).to(dtype)

    def _apply(self, values: torch.Tensor, place: TensorPlace, name: str) -> None:
        if place.kind in ("norm", "norm_bias"):
            self._apply_norm(values, place)
        else:
            self._apply_weight(values, place, name)

    def _apply_norm(self, values: torch.Tensor, place: TensorPlace) -> None:
        stream = self.stream
        if place.layer is None:
            gains = self.reconstruction.final_gain
            # A tied head has the embedding's scale, for which the gain compensates.
            times = 1.0 / stream.scale if self.is_tied and self.untied is None else 1.0
        else:
            assert place.role is not None
            gains, times = self.reconstruction.layers[place.layer].gains.get(place.role.value), 1.0
        if place.kind == "norm_bias":
            bias = stream.bias(values, gains)
            values.copy_(bias * times)
            return
        plus_one = self.model.anatomy.norms_add_one
        gain = stream.gain(values + 1.0 if plus_one else values, gains, times=times)
        values.copy_(gain - 1.0 if plus_one else gain)

    def _apply_weight(self, values: torch.Tensor, place: TensorPlace, name: str) -> None:
        assert place.layer is not None and place.role is not None
        layer = self.model.anatomy.layers[place.layer]
        matched = self.reconstruction.layers[place.layer]
        weight = place.extract(values)
        order = expert_order(matched.experts)
        mlp, source = matched.mlp, place.expert
        if place.expert is not None and matched.experts is not None:
            mlps = matched.experts.shared if place.is_shared else matched.experts.mlps
            if order is not None and not place.is_shared:
                order = order.argsort() if self.stream.is_inverse else order
                source = int(order[place.expert])
                weight = self._of_expert(place, source, name)
            # In the inverse, the position is the candidate's own number.
            number = place.expert if self.stream.is_inverse else source
            mlp = mlps[number] if number is not None and number < len(mlps) else None
        if place.kind == "bias":
            place.put(values, self._mapped_bias(weight, place, mlp))
            return
        mapped = mapped_weight(
            weight, place.role, layer=layer, matched=matched, mlp=mlp, stream=self.stream, is_shared=place.is_shared
        )
        if place.role is Role.ROUTER and order is not None:
            mapped = mapped[order.argsort() if self.stream.is_inverse else order]
        place.put(values, mapped)

    def _of_expert(self, place: TensorPlace, source: int, name: str) -> torch.Tensor:
        """Read the corresponding weight of the expert that moves to this position."""
        assert place.layer is not None and place.role is not None
        part = self.model.anatomy.layers[place.layer].experts[source][place.role]
        stored = self._stored(part.tensor)
        return TensorPlace.of_part("weight", part, tuple(stored.shape), place.layer, place.role).extract(
            stored.to(_exact(stored.dtype))
        )

    def _mapped_bias(self, bias: torch.Tensor, place: TensorPlace, mlp: MlpMap | None) -> torch.Tensor:
        assert place.layer is not None and place.role is not None
        if place.role.writes_stream:
            return self.stream.written(bias)
        matched = self.reconstruction.layers[place.layer]
        inner = rows_of(matched, place.role, mlp)
        if inner is None:
            return bias
        return (inner.inverse if self.stream.is_inverse else inner).apply(bias)


def _exact(stored: torch.dtype) -> torch.dtype:
    """Return a dtype for computing that is more precise than the stored one."""
    return torch.float32 if stored.itemsize <= 2 else torch.float64


def _head_name(model: Model, reference: Model | None) -> str:
    if reference is not None and reference.anatomy.unembedding is not None:
        return reference.anatomy.unembedding.tensor
    tensor_names = frozenset(model.tensors.names())
    return next(name for name in ("lm_head.weight", "output.weight", "aligned_head.weight") if name not in tensor_names)


def _config(model: Model, stream: StreamTransform, *, is_untied: bool) -> tuple[bytes | None, list[str]]:
    files = model.weights.base
    notes: list[str] = []
    if CONFIG not in files.files:
        if stream.scale != 1.0 or is_untied:
            raise ReconstructionError("its config.json, which has to change, is not there", subject=model.label)
        return None, notes
    content = files.read(CONFIG, max_bytes=MAX_CONFIG_N_BYTES)
    if stream.scale == 1.0 and not is_untied:
        return content, notes
    config = json.loads(content)
    if is_untied:
        for inner in _sections(config):
            if "tie_word_embeddings" in inner or inner is config:
                inner["tie_word_embeddings"] = False
        notes.append("Its head was tied to the embedding; after a rotation it needs a matrix of its own.")
    if stream.scale != 1.0:
        n_changed = 0
        for inner in _sections(config):
            for key in EPSILONS:
                epsilon = inner.get(key)
                if isinstance(epsilon, float):
                    inner[key] = epsilon * stream.scale**2
                    n_changed += 1
        if not n_changed:
            raise ReconstructionError(
                f"the residual stream is scaled by {stream.reconstruction.stream.scale:.6g}, and config.json names no "
                f"epsilon of the norms (one of {', '.join(EPSILONS)}) to scale with it",
                subject=model.label,
            )
        has_head_norms = any(Role.Q_NORM in layer.parts for layer in model.anatomy.layers)
        if has_head_norms:
            notes.append("The epsilon of its norms was scaled, and norms of queries and keys share it.")
    return (json.dumps(config, indent=2) + "\n").encode(), notes


def _sections(config: dict[str, object]) -> Iterator[dict[str, object]]:
    yield config
    inner = config.get("text_config")
    if isinstance(inner, dict):
        yield inner


def _shards(model: Model, untied: str | None) -> dict[str, list[Planned]]:
    by_path: dict[str, list[Planned]] = {}
    for name in model.tensors.names():
        spec = model.tensors.spec(name)
        if DTYPES.get(spec.dtype) is None or DTYPES[spec.dtype].torch_dtype is None:
            raise ReconstructionError(
                f"tensor {name!r} is stored as {spec.dtype}, which is not written", subject=model.label
            )
        dtype = NAME_OF_TORCH_DTYPE[DTYPES[spec.dtype].torch_dtype]  # type: ignore[index]
        by_path.setdefault(spec.path, []).append(Planned(name, tuple(spec.shape), dtype))
    if untied is not None:
        embedding = model.anatomy.embedding
        assert embedding is not None
        spec = model.tensors.spec(embedding.tensor)
        by_path[spec.path].append(Planned(untied, tuple(spec.shape), spec.dtype))
    if len(by_path) == 1:
        return {"model.safetensors": next(iter(by_path.values()))}
    n = len(by_path)
    return {f"model-{i:05d}-of-{n:05d}.safetensors": by_path[path] for i, path in enumerate(sorted(by_path), start=1)}


def check_empty(folder: Path) -> None:
    """Reject a folder that already contains files.

    Raises:
        InputError: If the path is a file, or a folder that contains files.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; name a folder that does not exist")


def _make_folder(folder: Path, n_bytes: int) -> None:
    check_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        raise InputError(f"cannot write into {folder}: {exc.strerror}") from exc
    if free < n_bytes + SPARE_DISK:
        raise InputError(
            f"the aligned model takes {n_bytes / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free at {folder}; make room, "
            "or name another disk"
        )


def _write_side_files(
    model: Model, folder: Path, config: bytes | None, shards: Mapping[str, list[Planned]], total: int
) -> None:
    try:
        if config is not None:
            (folder / CONFIG).write_bytes(config)
        for repository in (model.weights.base, model.tokenizer_files):
            for path in repository.files:
                if path in SIDE_FILES and not (folder / path).exists():
                    (folder / path).write_bytes(repository.read(path))
        if len(shards) > 1:
            weight_map = {tensor.name: file for file, tensors in shards.items() for tensor in tensors}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    except OSError as exc:
        raise InputError(f"cannot write into {folder}: {exc.strerror}") from exc
