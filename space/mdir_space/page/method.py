"""The page "How it works": each idea with a picture of a real comparison."""

from __future__ import annotations

import json

import gradio as gr
from gradio.components import Navbar

from mdir_space.html.templates import render
from mdir_space.routes.pictures import PICTURES, PREFIX


def method_page() -> None:
    """Fill the page that is being built."""
    index = PICTURES / "index.json"
    known = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    Navbar(main_page_name="Compare", elem_id="navigation")
    gr.HTML(render("method", known=known, folder=PREFIX.lstrip("/")), elem_id="page")
