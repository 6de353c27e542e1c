"""Architectures in which the number of a residual channel means something, so that strangers may agree in it.

Training does not care about the numbers of channels: whichever way they are numbered at first, it does the same. That
is why channels "in their own order" are a matching fixed in advance (docs/method/bound.md). It fails where the
architecture itself, or a task, names a channel by its number.

Source: the modelling files of transformers 5.23; ``tests/model/roles/test_numbered_channels.py`` checks that no family
with sinusoidal positions is missing, and that the sinusoids arrive in the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mdir_hf.model.roles.rows import NO, YES, Answer

SINUSOIDS = "sinusoids are added to the residual stream for positions, and a channel's number is its frequency"
RAMPS = "the mixing of neighbouring tokens begins as a ramp over the numbers of the channels"
FOURIER = "a Fourier transform over the channels, by their numbers, stands in place of attention"
NESTED = "the first channels were trained to do without the others (Matryoshka)"


@dataclass(frozen=True, slots=True)
class NumberRow:
    """What the numbers of channels mean in some families.

    Attributes:
        meaning: What, as a clause.
        model_types: Families it holds for; empty: any.
        when: As in :class:`~mdir_hf.model.roles.rows.LayerRow`.
        said: Keys of the config one of which must be there, with more in it than nothing; empty: no matter.
    """

    meaning: str
    model_types: frozenset[str] = frozenset()
    when: tuple[tuple[str, frozenset[Answer]], ...] = ()
    said: frozenset[str] = frozenset()


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
    # A channel may still change its sign everywhere, so that these strangers have no reason to agree; but the bound
    # asks for a rotation.
    NumberRow(
        RAMPS,
        frozenset({"arwkv7", "rwkv", "rwkv4", "rwkv5", "rwkv6", "rwkv6qwen2", "rwkv7", "rwkv_hybrid"}),
    ),
    NumberRow(FOURIER, frozenset({"fnet"})),
    NumberRow(NESTED, said=frozenset({"is_matryoshka", "matryoshka_dimensions"})),
)


NESTED_NEURONS = "the first neurons were trained to do without the others (MatFormer)"
NUMBERED_NEURONS = dict.fromkeys(("gemma3n", "gemma3n_text"), NESTED_NEURONS)


def meaning_of_neuron_numbers(architecture: str) -> str | None:
    """Say what the number of a neuron means in a model, given its ``model_type``; None where no meaning is known."""
    return NUMBERED_NEURONS.get(architecture)


def meaning_of_numbers(
    architecture: str, answers: Mapping[str, bool | str] = {}, config: Mapping[str, object] = {}
) -> str | None:
    """Say what the number of a residual channel means in a model.

    Args:
        architecture: ``model_type`` of the language model.
        answers: Every yes, no and word of its config; none where there is no config.
        config: The whole config.

    Returns:
        A clause, or None where no meaning is known.
    """
    for row in NUMBER_ROWS:
        is_of_family = not row.model_types or architecture in row.model_types
        is_said = not row.said or any(config.get(key) for key in row.said)
        if is_of_family and is_said and all(answers.get(key) in allowed for key, allowed in row.when):
            return row.meaning
    return None
