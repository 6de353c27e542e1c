"""Schemes that are recognised but not supported, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefusedScheme:
    """A scheme that is not supported.

    Attributes:
        name: Name used by its authors.
        markers: Tensors of a module that identify it. The first is reported as the codes; the last triggers the check.
        further: Other tensors that it writes into the module.
        reason: Why it is not supported, worded to follow "in a way that is not supported: ".
    """

    name: str
    markers: tuple[str, ...]
    further: tuple[str, ...]
    reason: str

    @property
    def parts(self) -> frozenset[str]:
        """All last name components that belong to it."""
        return frozenset((*self.markers, *self.further))


_CODEBOOK = "its weights are entries of codebooks, in a layout of its own"
_SUBCLASS = "its packing depends on a tensor class that only that library knows"

REFUSED: tuple[RefusedScheme, ...] = (
    RefusedScheme("EXL3", ("trellis",), ("suh", "svh", "su", "sv", "mcg", "mul1"), "a trellis code under a rotation"),
    RefusedScheme(
        "EXL2",
        ("q_weight", "q_scale"),
        ("q_scale_max", "q_groups", "q_group_map", "q_perm", "q_invperm"),
        "its bit width changes within a matrix",
    ),
    RefusedScheme("AQLM", ("codes", "codebooks"), ("scales",), _CODEBOOK),
    RefusedScheme(
        "VPTQ",
        ("indices", "centroids"),
        ("res_indices", "res_centroids", "outlier_indices", "outlier_centroids", "perm", "weight_scale", "weight_bias"),
        _CODEBOOK,
    ),
    RefusedScheme("QuIP#", ("Qidxs",), ("SU", "SV", "Wscale", "codebook_id", "A", "B"), _CODEBOOK),
    RefusedScheme(
        "SpQR",
        ("dense_weights", "row_offsets"),
        ("col_vals", "in_perm"),
        "its outliers are kept apart, as a sparse matrix",
    ),
    RefusedScheme("HIGGS", ("tables", "tables2"), ("scales",), "its weights are rotated by blocks, with a code table"),
    RefusedScheme(
        "FP-Quant",
        ("qweight", "forward_hadamard_matrix"),
        ("scales", "dqweight", "backward_hadamard_matrix", "weight_global_scale", "act_global_scale"),
        "its weights are rotated by blocks before they are quantised",
    ),
    RefusedScheme("SINQ", ("W_q", "meta"), (), _SUBCLASS),
    RefusedScheme(
        "HQQ",
        ("W_q",),
        (
            *("scale", "zero", "nbits", "group_size", "axis", "packing", "shape", "channel_wise", "encoded_state_dict"),
            *("compute_dtype", "offload_meta", "optimize", "round_zero", "unpack_view_dtype", "view_as_float"),
            *("quant_scale", "quant_zero", "stores_quant_config"),
        ),
        _SUBCLASS,
    ),
    RefusedScheme("quanto", ("_data", "_scale"), ("_shift", "input_scale", "output_scale"), _SUBCLASS),
    RefusedScheme("torchao", ("_weight_qdata",), ("_weight_scale", "_weight_zero_point", "_weight_zero"), _SUBCLASS),
    RefusedScheme("Marlin", ("B", "s"), ("meta", "workspace"), "its tiles are laid out for one kind of GPU"),
    RefusedScheme(
        "2:4 sparse Marlin",
        ("weight_packed", "scale_packed", "meta"),
        (),
        "its tiles are laid out for one kind of GPU",
    ),
    RefusedScheme(
        "compressed-tensors, sparse",
        ("compressed", "bitmask"),
        ("shape", "row_offsets"),
        "only the entries that are not zero are stored",
    ),
    RefusedScheme(
        "Gemma, packed",
        ("embedding_quantized",),
        ("embedding_scale",),
        "only patterns in its config tell the bit width of each module",
    ),
    RefusedScheme(
        "SVDQuant",
        ("svdquant_lora_a", "svdquant_lora_b"),
        ("weight", "weight_scale", "weight_scale_2", "pre_quant_scale", "input_scale"),
        "a part of each weight is kept apart, as a product of two thin matrices",
    ),
)
"""In the order in which they are tried: schemes whose tensors include another's come first."""

TELLTALES = frozenset(scheme.markers[-1] for scheme in REFUSED)
"""Last name components that mark a module for a closer look."""

REASON: dict[str, str] = {scheme.name: scheme.reason for scheme in REFUSED}
