"""The other pages: "I suspect that X came from Y", and "How it works"."""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr
from gradio.components import Navbar

from mdir_space.html.templates import render
from mdir_space.routes.pictures import PICTURES, PREFIX

SUSPECT = Path(__file__).resolve().parent / "suspect.md"


def suspect_page() -> None:
    """Fill the page that explains to non-specialists how to check a suspicion by comparing two models."""
    Navbar(main_page_name="Compare", elem_id="navigation")
    with gr.Column(elem_id="page", elem_classes="method"):
        gr.Markdown(SUSPECT.read_text(encoding="utf-8"))


def method_page() -> None:
    """Fill the page "How it works", which shows each idea with a figure of a real comparison."""
    index = PICTURES / "index.json"
    pictures = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    Navbar(main_page_name="Compare", elem_id="navigation")
    gr.HTML(render("method", pictures=pictures, folder=PREFIX.lstrip("/")), elem_id="page")
