"""The look of the page: its fonts, sizes and colours."""

from __future__ import annotations

import gradio as gr

TEXT_SIZES = gr.themes.Size(
    name="text_rem",
    xxs="0.5625rem",
    xs="0.625rem",
    sm="0.75rem",
    md="0.875rem",
    lg="1rem",
    xl="1.375rem",
    xxl="1.625rem",
)
"""Gradio's own sizes, relative to the font size of the browser."""


def theme() -> gr.themes.Base:
    """Return the theme, in the colours of the figures."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
        radius_size=gr.themes.sizes.radius_sm,
        text_size=TEXT_SIZES,
    ).set(
        color_accent="#00609a",
        body_background_fill="#ffffff",
        body_background_fill_dark="#111418",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#111418",
        background_fill_secondary="#f4f6f8",
        background_fill_secondary_dark="#1c2128",
        block_background_fill="#ffffff",
        block_background_fill_dark="#111418",
        body_text_color="#1b1f24",
        body_text_color_dark="#e6edf3",
        body_text_color_subdued="#57606a",
        body_text_color_subdued_dark="#9da7b1",
        border_color_primary="#c4ccd5",
        border_color_primary_dark="#3d444d",
        link_text_color="#00609a",
        link_text_color_dark="#79c0ff",
        button_primary_background_fill="#00609a",
        button_primary_background_fill_hover="#004d7c",
        button_primary_background_fill_dark="#1f6feb",
        button_primary_background_fill_hover_dark="#388bfd",
        button_primary_border_color="#00609a",
        button_primary_border_color_dark="#1f6feb",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        block_border_width="0px",
        block_shadow="none",
        block_label_text_color="#1b1f24",
        input_background_fill="#ffffff",
        input_background_fill_dark="#0d1014",
        input_border_color="#8c959f",
        input_border_color_dark="#6e7681",
        input_border_width="1px",
    )
