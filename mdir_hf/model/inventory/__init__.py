"""The inventory of a model: every tensor in its files, each assigned to exactly one part."""

from mdir_hf.model.inventory.by_shape import other_stacks
from mdir_hf.model.inventory.headers import inventory_of, resolve_from_headers
from mdir_hf.model.inventory.records import ModelInventory, ModelPart, ModelView, PartKind
from mdir_hf.model.inventory.take import may_have_other_stacks, take_inventory

__all__ = [
    "ModelInventory",
    "ModelPart",
    "ModelView",
    "PartKind",
    "inventory_of",
    "may_have_other_stacks",
    "other_stacks",
    "resolve_from_headers",
    "take_inventory",
]
