"""Write the candidate in the reference's basis, or an aligned model in its original basis.

One tensor is in memory at a time. An unknown tensor raises an error before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mdir_hf._version import __version__
from mdir_hf.errors import InputError, MdirError, ReconstructionError, one_line
from mdir_hf.model.files.decode import DTYPES, NAME_OF_TORCH_DTYPE
from mdir_hf.model.hub import Repository
from mdir_hf.model.hub.local import LocalRepository
from mdir_hf.model.opened import CONFIG, MAX_CONFIG_N_BYTES, Model
from mdir_hf.model.roles import Role, StoredWeight, part_shape
from mdir_hf.reconstruction.explained import Explained, explained_share
from mdir_hf.reconstruction.places import (
    StreamTransform,
    TensorPlace,
    expert_order,
    mapped_weight,
    plan_places,
    rows_of,
)
from mdir_hf.reconstruction.records import MlpMap, NormGains, Reconstruction
from mdir_hf.reconstruction.shards import Planned, ShardWriter
from mdir_hf.reconstruction.storage import ARRAYS, INDEX, reconstruction_files
from mdir_hf.writing import Output

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

MOST_RETURN_ERROR = 1e-3
"""Largest relative error of sampled rows that were mapped there and back, before they are rounded. A map that loses
more in float32 loses everything in 16 bits."""

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
    restart: bool = False,
    on_bytes: OnBytes | None = None,
) -> Written:
    """Write a model in the reference's basis as safetensors, with its config, tokenizer files and the reconstruction.

    The result has the same logits, up to rounding. With ``is_inverse``, an aligned model is mapped back to its
    original basis. If ``reference`` is given, each tensor is compared with it. The folder must be new or empty, or hold
    what a killed run of the same call left, which is then continued; see :class:`~mdir_hf.writing.Output`.

    Raises:
        ReconstructionError: If a tensor has no known place, the transformation cannot be applied exactly, or it would
            write a value that is not finite.
        CompleteOutputError: If the model is there already, and ``restart`` is not set.
        InputError: If the folder is not empty or the disk has too little space.
    """
    inputs = inputs_digest(model, reference, is_inverse=is_inverse)
    with Output(folder, inputs, restart=restart) as output:
        written = write_into(
            output, model, reconstruction, reference=reference, is_inverse=is_inverse, on_bytes=on_bytes
        )
        output.finish()
        return written


def inputs_digest(*models: Model | None, **options: object) -> str:
    """Return a digest of the models' files, all options, and the version of this package.

    Files on the Hub are identified by their commit, and local files by size and time. A model in memory never has the
    same digest twice.
    """
    files = [
        None if model is None else [_identity(link.repository, link.recipe) for link in model.weights.chain]
        for model in models
    ]
    text = json.dumps([__version__, files, sorted(options.items())], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(repository: Repository, recipe: str) -> list[object]:
    if isinstance(repository, LocalRepository):
        stats = {path: (repository.folder / path).stat() for path in repository.files if "/" not in path}
        times = {path: stat.st_mtime_ns for path, stat in sorted(stats.items()) if not path.endswith(".md")}
    else:
        times = {} if repository.commit is not None else {secrets.token_hex(): 0}
    sizes = {path: repository.files[path].n_bytes for path in times if path in repository.files}
    return [repository.label, repository.commit, repository.subfolder, repository.file, recipe, times, sizes]


def write_into(
    output: Output,
    model: Model,
    reconstruction: Reconstruction,
    *,
    reference: Model | None = None,
    is_inverse: bool = False,
    full_rotation: bool = False,
    on_bytes: OnBytes | None = None,
) -> Written:
    """Stage the files of :func:`write_model`, except those that an earlier run staged from the same reconstruction."""
    try:
        return _write_into(output, model, reconstruction, reference, on_bytes, is_inverse, full_rotation)
    except ReconstructionError:
        output.forget()  # the next run would fail in the same way
        raise


def _write_into(
    output: Output,
    model: Model,
    reconstruction: Reconstruction,
    reference: Model | None,
    on_bytes: OnBytes | None,
    is_inverse: bool,
    full_rotation: bool,
) -> Written:
    _check(model, reconstruction, reference)
    plan = plan_places(model)
    stream = StreamTransform(reconstruction, is_inverse)
    is_rotated = reconstruction.stream.outer.kind == "rotation"
    is_tied = model.anatomy.unembedding is None and model.anatomy.tied
    untied = _head_name(model, reference) if is_tied and is_rotated else None
    config, notes = _config(model, stream, is_untied=untied is not None)
    shards = _shards(model, untied)
    total = sum(tensor.n_bytes for tensors in shards.values() for tensor in tensors)
    n_bytes_kept = sum(tensor.n_bytes for file, tensors in shards.items() for tensor in tensors if output.kept(file))
    _expect_room(output.folder, total - n_bytes_kept)
    _put_reconstruction(output, reconstruction, full_rotation=full_rotation)
    explained: list[Explained] = []
    n_bytes_written = 0
    writer_of = _Tensors(model, reconstruction, stream, plan, untied=untied, is_tied=is_tied)
    for file, tensors in shards.items():
        kept = output.kept(file)
        if kept is not None and isinstance(kept.note, list):
            explained += [Explained(name, share) for name, share in kept.note]
            n_bytes_written += sum(tensor.n_bytes for tensor in tensors)
            continue
        shares: list[tuple[str, float | None]] = []
        with ShardWriter(output.place(file), tensors) as writer:
            for tensor in tensors:
                values = writer_of.tensor(tensor.name)
                if reference is not None and values.is_floating_point():
                    places = plan.get(tensor.name, ())
                    share = explained_share(
                        values, tensor.name, places, model, reference, reconstruction, is_head=tensor.name == untied
                    )
                    shares.append((tensor.name, share))
                writer.write(tensor.name, values)
                n_bytes_written += tensor.n_bytes
                if on_bytes is not None:
                    on_bytes(n_bytes_written, total)
        output.keep(file, shares)
        explained += [Explained(name, share) for name, share in shares]
    for name, content in _side_files(model, config, shards, total).items():
        output.put(name, content)
    return Written(output.folder, total, tuple(explained), tuple(notes))


def _put_reconstruction(output: Output, reconstruction: Reconstruction, *, full_rotation: bool) -> None:
    """Stage the reconstruction, and remove files that were staged from another one."""
    whole = hashlib.sha256(b"".join(reconstruction_files(reconstruction, full_rotation=True))).hexdigest()
    kept = output.kept(INDEX)
    if kept is not None and kept.note == whole and output.kept(ARRAYS) is not None:
        return
    output.forget()
    index, arrays = reconstruction_files(reconstruction, full_rotation=full_rotation)
    output.put(ARRAYS, arrays)
    output.put(INDEX, index, whole)


def _check(model: Model, reconstruction: Reconstruction, reference: Model | None) -> None:
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
    _expect_same_sizes(model, reconstruction, reference)
    scale = reconstruction.stream.scale
    if not 0.0 < scale < math.inf:  # also if it is NaN
        raise ReconstructionError(
            f"the scale of its residual stream is {scale}, expected a positive number; make the reconstruction again",
            subject=label,
        )
    if outer.matrix is not None:
        gram = outer.matrix @ outer.matrix.T
        error = float((gram - torch.eye(len(gram), dtype=gram.dtype)).abs().max())
        if not error <= 1e-6:  # also if it is NaN
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


def _expect_same_sizes(model: Model, reconstruction: Reconstruction, reference: Model | None) -> None:
    """Check that the models have the neurons, heads, experts and layers of a reconstruction."""

    def expect(what: str, stated: object, actual: object) -> None:
        if stated != actual:
            raise ReconstructionError(
                f"it has {actual} {what}, and the reconstruction is of a model with {stated}; make one of this pair",
                subject=model.label,
            )

    def n_neurons(part: StoredWeight) -> int:
        return part_shape(part, lambda name: tuple(model.tensors.spec(name).shape))[0]

    anatomy = model.anatomy
    for position, (layer, matched) in enumerate(zip(anatomy.layers, reconstruction.layers, strict=True)):
        at, heads = f"in layer {position}", matched.attention
        if heads is not None and heads.n_heads > 1:
            n_heads = layer.heads.n_heads if layer.heads else anatomy.n_heads or 1
            n_kv_heads = layer.heads.n_kv_heads if layer.heads else anatomy.n_kv_heads or n_heads
            expect(f"query and key-value heads {at}", (heads.n_heads, heads.n_kv_heads), (n_heads, n_kv_heads))
        groups: list[tuple[Sequence[MlpMap], Sequence[Mapping[Role, StoredWeight]]]] = []
        if matched.mlp is not None:
            groups.append(([matched.mlp], [layer.parts]))
        if matched.experts is not None:
            groups += [(matched.experts.mlps, layer.experts), (matched.experts.shared, layer.shared_experts)]
            expect(f"routed experts {at}", len(matched.experts.mlps), len(layer.experts))
        for mlps, parts in groups:
            for mlp, of_mlp in zip(mlps, parts, strict=False):
                if Role.UP in of_mlp:
                    expect(f"neurons {at}", mlp.n_neurons, n_neurons(of_mlp[Role.UP]))
    if reference is None:
        return
    outer, n_layers = reconstruction.stream.outer, len(reference.anatomy.layers)
    numbers = [layer.reference for layer in reconstruction.layers if layer.reference is not None]
    if reference.anatomy.hidden_size != outer.n_reference or max(numbers, default=0) >= n_layers:
        raise ReconstructionError(
            f"it has {n_layers} layers of width {reference.anatomy.hidden_size}; the reconstruction is from a model of "
            f"width {outer.n_reference}, with a layer {max(numbers, default=0)}",
            subject=reference.label,
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
        """Return a tensor of the aligned model in its stored dtype.

        Raises:
            ReconstructionError: If a value is not finite, or a sample of rows cannot be mapped back.
        """
        try:
            values = self._mapped(name)
        except (ArithmeticError, RuntimeError, ValueError) as exc:  # an error of a file is a ValueError, too
            if isinstance(exc, MdirError):
                raise
            raise ReconstructionError(
                f"tensor {name!r} cannot be mapped: {one_line(exc)}; make the reconstruction of this pair again",
                subject=self.model.label,
            ) from exc
        is_buffer = name in self.plan and not self.plan[name]
        if values.is_floating_point() and not is_buffer:
            n_bad = int((~torch.isfinite(values.float())).sum())
            if n_bad:
                raise ReconstructionError(
                    f"tensor {name!r} would have {n_bad:,} of {values.numel():,} values that are not finite in "
                    f"{str(values.dtype)[6:]}, expected none; it is not written. Check the stored tensor, or store the "
                    "model in float32 first",
                    subject=self.model.label,
                )
        return values

    def _mapped(self, name: str) -> torch.Tensor:
        final_gain = self.reconstruction.final_gain
        if name == self.untied:
            embedding = self.model.anatomy.embedding
            assert embedding is not None
            return self._by_blocks(name, self._stored(embedding.tensor), final_gain, writes=False)
        stored = self._stored(name)
        places = self.plan[name]
        if not places:
            return stored
        if places[0].kind in ("written", "head"):
            return self._by_blocks(name, stored, final_gain, writes=places[0].kind == "written")
        values = stored.to(_exact(stored.dtype)).clone()
        for place in places:
            self._apply(values, place, name)
        return values.to(stored.dtype)

    def _by_blocks(self, name: str, stored: torch.Tensor, gains: NormGains | None, *, writes: bool) -> torch.Tensor:
        result = torch.empty_like(stored)
        for start in range(0, len(stored), BLOCK_ROWS):
            rows = stored[start : start + BLOCK_ROWS].to(_exact(stored.dtype))
            mapped = self.stream.written(rows) if writes else self.stream.read(rows, gains)
            result[start : start + BLOCK_ROWS] = mapped
            if start == 0:
                self._expect_return(self.stream.return_error(rows, mapped, gains, writes=writes), name)
        return result

    def _expect_return(self, error: float, name: str) -> None:
        if not error <= MOST_RETURN_ERROR:  # also if it is NaN
            raise ReconstructionError(
                f"rows of tensor {name!r}, mapped there and back, differ by {error:.1e} of their size, expected at "
                f"most {MOST_RETURN_ERROR:g}; it is not written. Make the reconstruction of this pair again",
                subject=self.model.label,
            )

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
        mapped, error = mapped_weight(
            weight, place.role, layer=layer, matched=matched, mlp=mlp, stream=self.stream, is_shared=place.is_shared
        )
        self._expect_return(error, name)
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


def _expect_room(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes + SPARE_DISK:
        raise InputError(
            f"the aligned model takes {n_bytes / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free at {folder}; make room, "
            "or name another disk"
        )


def _side_files(
    model: Model, config: bytes | None, shards: Mapping[str, list[Planned]], total: int
) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for repository in (model.weights.base, model.tokenizer_files):
        for path in repository.files:
            if path in SIDE_FILES and path not in contents:
                contents[path] = repository.read(path)
    if len(shards) > 1:
        weight_map = {tensor.name: file for file, tensors in shards.items() for tensor in tensors}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        contents["model.safetensors.index.json"] = (json.dumps(index, indent=2) + "\n").encode()
    if config is not None:
        contents[CONFIG] = config  # the last file: without it, nobody takes the folder for a model
    return contents
