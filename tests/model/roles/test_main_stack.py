"""One function chooses the main stack, which a verdict answers for, and says why."""

import pytest

from mdir_hf.model.roles.config import read_sizes
from mdir_hf.model.roles.layer_names import find_stacks
from mdir_hf.model.roles.layers import choose_stack

LAYER = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "mlp.up_proj.weight")


def names_of(*prefixes, layer=LAYER):
    return [f"{prefix}.{at}.{suffix}" for prefix in prefixes for at in range(3) for suffix in layer]


@pytest.mark.parametrize(
    ("names", "embedding", "architecture", "chosen", "why"),
    [
        (names_of("model.layers"), "model.embed_tokens.weight", "llama", "model.layers", "the only stack"),
        (
            names_of("model.layers", "vision_tower.blocks"),
            "model.embed_tokens.weight",
            "llava",
            "model.layers",
            "towers, talkers or draft models",
        ),
        (
            names_of("encoder.block", "decoder.block"),
            "encoder.embed_tokens.weight",
            "t5",
            "decoder.block",
            "most in common with the embedding",
        ),
        (
            [*names_of("first.layers"), *names_of("second.layers", layer=LAYER[:1])],
            "embed.weight",
            "unknown",
            "first.layers",
            "most matrices with a known role",
        ),
        (
            names_of("global_transformer.layers", "local_encoder.layers", "local_decoder.layers"),
            "local_encoder.embed_tokens.weight",
            "blt_global_transformer",
            "global_transformer.layers",
            "nearly all weights of this family",
        ),
        ([], "embed.weight", "unknown", None, ""),
    ],
)
def test_the_choice_and_its_reason(names, embedding, architecture, chosen, why):
    stack, reason = choose_stack(find_stacks(names), embedding, read_sizes({"model_type": architecture}))
    assert (None if stack is None else stack.prefix) == chosen
    assert why in reason and bool(reason) is (stack is not None)
