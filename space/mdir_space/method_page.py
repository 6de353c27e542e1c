"""How it works: one idea after the other, each with a picture drawn from a real comparison."""

from __future__ import annotations

import json
from dataclasses import dataclass

import gradio as gr
from gradio.components import Navbar

from mdir_space.markup import text
from mdir_space.static_pictures import PICTURES, PREFIX

OPENING = """
<h1>How it works</h1>
<p class="lede">Training moves weights, but not far: a model that began as a copy of another one still lines up with it,
channel by channel. Two models that were trained apart do not line up, and how well two strangers may line up by chance
can be bounded by a theorem. That bound is the p-value.</p>
<p>The pictures show models that <code>mdir-hf demo</code> trains in a minute: a small base, some of its descendants,
and a stranger that shares everything with the base but the random seed.</p>
"""


@dataclass(frozen=True)
class Idea:
    """One idea: a heading, HTML of our own, and the pictures that show it with what to look at."""

    heading: str
    body: str
    pictures: tuple[tuple[str, str], ...]


IDEAS = (
    Idea(
        "Two models, the same words",
        "<p>Every language model holds one row of numbers, its embedding, for each token of its vocabulary. On the "
        "tokens that two models share, the rows of the one are multiplied with the rows of the other, and of that "
        "product only the rotation is kept that fits best: its polar factor. Each entry says how strongly a channel of "
        "the one model resembles a channel of the other.</p>",
        (
            ("relatives", "A base and its fine-tune: every channel resembles its own counterpart and no other."),
            ("strangers", "The base and a stranger: same architecture, same data, another seed. Only noise is left."),
        ),
    ),
    Idea(
        "Hiding the order does not help",
        "<p>Channels can be put into another order, their signs turned, their sizes changed, and the model computes "
        "the same. The polar factor then looks scattered, but it still has one strong entry in each row and column. "
        "The best one-to-one matching finds them, and their sum, the trace, is the evidence.</p>",
        (
            ("reordered", "The fine-tune with its channels shuffled and its embedding four times as large."),
            ("matched", "The same picture with each channel put beside the one that it matches."),
        ),
    ),
    Idea(
        "What chance could do, as a theorem",
        "<p>Suppose one of the two models were independent of the other and had no preferred axes. Then its polar "
        "factor could be turned by any random rotation without becoming more or less likely, and the chance that "
        "<em>any</em> matching reaches a trace of c is at most</p>"
        "<p class='formula'>ln p ≤ ln (number of matchings) − c² n / (2 ‖U‖²)</p>"
        "<p>for n channels and polar factor U. It holds at every size, it counts every matching that could have been "
        "picked, and every look and every test is paid for. On the same rows a placebo is run: tokens paired wrongly, "
        "or one model rotated at random. It must not be significant.</p>"
        "<p>One matching is named before looking: every channel with itself. It pays for no choice, and it finds a "
        "model that was trained or noised until no single channel can be told any more, if its channels still stand "
        "in their old order.</p>",
        (("chance", "The trace of two relatives against the trace that strangers reach once in a thousand (line)."),),
    ),
    Idea(
        "A few tokens are enough",
        "<p>A copy is settled by some hundred tokens, which are a few megabytes of a checkpoint of many gigabytes. So "
        "the comparison looks at few tokens first and doubles them until the question is settled, or all are read. "
        "Looking several times costs a little significance, and that is taken off.</p>",
        (
            ("settled", "A fine-tune: the first look at 512 tokens is far past alpha."),
            ("looks", "Two strangers: at no number of tokens does anything stand out."),
        ),
    ),
    Idea(
        "Which layer comes from which",
        "<p>Where the embeddings do not settle it, or where more is asked for, every layer of the one model is tested "
        "against every layer of the other. The best ordered matching shows which layers were kept, dropped, repeated "
        "or inserted.</p>",
        (("layers", "Six layers of the base against six of its descendant: each has one ancestor, in order."),),
    ),
    Idea(
        "Matrix by matrix, in spite of rotations",
        "<p>A model may have its whole residual stream rotated, so that no channel keeps its place. The tokens that "
        "both models share give the rotation away, or the keys of the layers where the tokens are new; once it is "
        "undone, each matrix of each layer is tested up to what its part of the model leaves free: rotations of "
        "position planes in queries and keys, any change inside a head in values and outputs, the order of neurons in "
        "MLPs.</p>",
        (("modules", "A rotated fine-tune: its matrices, layer by layer, against those of the base."),),
    ),
)

CLOSING = """
<h2>What it does not tell</h2>
<ul>
<li>No direction: the weights do not say which model came first, and nothing here is an accusation.</li>
<li>A shared random initialisation counts as shared ancestry, even if all training was separate.</li>
<li>“No evidence” is not “unrelated”. A model trained until nothing is left, or hidden in a way not looked for, is
not found.</li>
<li>Distillation, shared data and shared tokenizers are not weight ancestry. They are not what is tested.</li>
</ul>
<p>The method is Matrix-Driven Identification and Reconstruction: Ruichong Zhang and Daniel Goldstein,
<a href="https://arxiv.org/abs/2508.06309" target="_blank" rel="noopener">arXiv:2508.06309</a>.</p>
"""


def method_page() -> None:
    """Fill the page that is being built."""
    index = PICTURES / "index.json"
    known = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    sections = "".join(_section(idea, known) for idea in IDEAS)
    Navbar(main_page_name="Compare", elem_id="navigation")
    gr.HTML(f'<article class="method">{OPENING}{sections}{CLOSING}</article>', elem_id="page")


def _section(idea: Idea, known: dict[str, dict[str, object]]) -> str:
    shown = "".join(_figure(name, caption, known[name]) for name, caption in idea.pictures if name in known)
    return f'<section><h2>{text(idea.heading)}</h2>{idea.body}<div class="figures">{shown}</div></section>'


def _figure(name: str, caption: str, picture: dict[str, object]) -> str:
    images = "".join(
        f'<img class="when-{theme}" src="{PREFIX.lstrip("/")}/{text(f"{name}-{theme}.svg")}" '
        f'alt="{text(picture["alt"])}" width="{picture["width"]}" height="{picture["height"]}" loading="lazy">'
        for theme in ("light", "dark")
    )
    return f"<figure>{images}<figcaption>{text(caption)}</figcaption></figure>"
