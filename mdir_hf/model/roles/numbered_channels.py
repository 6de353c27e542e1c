"""Architectures in which a channel's number has a meaning, so unrelated models may agree (docs/method/bound.md).

Source: the modelling files of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mdir_hf.model.roles.rows import NO, YES, Answer

SINUSOIDS = "sinusoids are added to the residual stream for positions, and a channel's number is its frequency"
RAMPS = "the mixing of neighbouring tokens begins as a ramp over the numbers of the channels"
FOURIER = "a Fourier transform over the channels, by their numbers, replaces attention"
NESTED = "the first channels were trained to work without the others (Matryoshka)"


@dataclass(frozen=True, slots=True)
class NumberRow:
    """The meaning of channel numbers in some families.

    Attributes:
        model_types: Families that it applies to; empty for any.
        when: See :class:`~mdir_hf.model.roles.rows.LayerRow`.
        any_key: Config keys; at least one must have a truthy value. Empty for no condition.
    """

    meaning: str
    model_types: frozenset[str] = frozenset()
    when: tuple[tuple[str, frozenset[Answer]], ...] = ()
    any_key: frozenset[str] = frozenset()


NUMBER_ROWS: tuple[NumberRow, ...] = (
    NumberRow(
        SINUSOIDS,
        frozenset(
            {
                *("canary", "canary_decoder", "cohere_asr", "ctrl", "fsmt", "kosmos-2", "kosmos-2.5"),
                *("kosmos_2_5_text_model", "kosmos_2_text_model", "m2m_100", "marian", "musicgen_decoder"),
                *("musicgen_melody_decoder", "nllb-moe", "pegasus", "pegasus_x", "seamless_m4t", "seamless_m4t_v2"),
                *("speech_to_text", "speech_to_text_2", "speecht5", "xglm"),
            }
        ),
    ),
    NumberRow(SINUSOIDS, frozenset({"trocr"}), when=(("use_learned_position_embeddings", NO),)),
    NumberRow(SINUSOIDS, frozenset({"flaubert", "xlm"}), when=(("sinusoidal_embeddings", YES),)),
    NumberRow(SINUSOIDS, frozenset({"distilbert"}), when=(("sinusoidal_pos_embds", YES),)),
    # A channel's sign is still arbitrary, so unrelated models have no reason to agree, but the bound assumes a
    # rotation.
    NumberRow(
        RAMPS,
        frozenset({"arwkv7", "rwkv", "rwkv4", "rwkv5", "rwkv6", "rwkv6qwen2", "rwkv7", "rwkv_hybrid"}),
    ),
    NumberRow(FOURIER, frozenset({"fnet"})),
    NumberRow(NESTED, any_key=frozenset({"is_matryoshka", "matryoshka_dimensions"})),
)


NESTED_NEURONS = "the first neurons were trained to work without the others (MatFormer)"
NUMBERED_NEURONS = dict.fromkeys(("gemma3n", "gemma3n_text"), NESTED_NEURONS)


def meaning_of_neuron_numbers(architecture: str) -> str | None:
    """Return a clause that explains the meaning of a neuron's number, or None."""
    return NUMBERED_NEURONS.get(architecture)


def meaning_of_numbers(
    architecture: str, answers: Mapping[str, bool | str] = {}, config: Mapping[str, object] = {}
) -> str | None:
    """Return a clause that explains the meaning of a residual channel's number, or None."""
    for row in NUMBER_ROWS:
        is_of_family = not row.model_types or architecture in row.model_types
        has_key = not row.any_key or any(config.get(key) for key in row.any_key)
        if is_of_family and has_key and all(answers.get(key) in allowed for key, allowed in row.when):
            return row.meaning
    return None
