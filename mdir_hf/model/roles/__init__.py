"""Assign roles to a checkpoint's tensors, using tables of names, fused layouts and orientations."""

from mdir_hf.model.roles.config import ConfigSizes, language_config, params_config, read_config, read_sizes
from mdir_hf.model.roles.gguf import gguf_config
from mdir_hf.model.roles.layers import Layer
from mdir_hf.model.roles.numbered_channels import meaning_of_numbers
from mdir_hf.model.roles.parts import StoredWeight, WeightPart, WeightProduct, part_shape, read_experts, read_part
from mdir_hf.model.roles.resolve import WITHOUT_EMBEDDING, Anatomy, resolve_anatomy
from mdir_hf.model.roles.roles import FusedRows, HeadCounts, Role, RowsOfEach

__all__ = [
    "WITHOUT_EMBEDDING",
    "Anatomy",
    "ConfigSizes",
    "FusedRows",
    "HeadCounts",
    "Layer",
    "Role",
    "RowsOfEach",
    "StoredWeight",
    "WeightPart",
    "WeightProduct",
    "gguf_config",
    "language_config",
    "meaning_of_numbers",
    "params_config",
    "part_shape",
    "read_config",
    "read_experts",
    "read_part",
    "read_sizes",
    "resolve_anatomy",
]
