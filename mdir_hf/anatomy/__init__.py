"""Which tensor of a checkpoint plays which role: naming as data, fused layouts, orientation.

>>> from mdir_hf.anatomy import Role, read_config, read_part, resolve_anatomy
"""

from .config import ConfigSizes, language_config, read_config, read_sizes
from .gguf import gguf_config
from .layers import Layer
from .numbered_channels import meaning_of_numbers
from .params import params_config
from .parts import Part, WeightPart, WeightProduct, part_shape, read_experts, read_part
from .resolve import Anatomy, resolve_anatomy
from .roles import FusedRows, HeadCounts, Role, RowsOfEach, WholeTensor

__all__ = [
    "Anatomy",
    "ConfigSizes",
    "FusedRows",
    "HeadCounts",
    "Layer",
    "Part",
    "Role",
    "RowsOfEach",
    "WeightPart",
    "WeightProduct",
    "WholeTensor",
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
