"""Which tensor of a checkpoint plays which role: naming as data, fused layouts, orientation.

>>> from mdir_hf.anatomy import Role, read_config, read_part, resolve_anatomy
"""

from .config import ConfigSizes, language_config, read_config, read_sizes
from .layers import Layer
from .resolve import Anatomy, resolve_anatomy
from .roles import FusedRows, HeadCounts, Role, WeightPart, WholeTensor, read_experts, read_part

__all__ = [
    "Anatomy",
    "ConfigSizes",
    "FusedRows",
    "HeadCounts",
    "Layer",
    "Role",
    "WeightPart",
    "WholeTensor",
    "language_config",
    "read_config",
    "read_experts",
    "read_part",
    "read_sizes",
    "resolve_anatomy",
]
