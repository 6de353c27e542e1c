"""Report figures, drawn with matplotlib's object API (no pyplot).

Output is byte-for-byte reproducible, and no information is conveyed by colour alone. ``Figure.get_label()`` is the alt
text.
"""

from mdir_hf.render.figures.all_figures import draw_figures
from mdir_hf.render.figures.cells import CellGrid, figure_cells
from mdir_hf.render.figures.dendrogram import dendrogram_cells, draw_dendrogram
from mdir_hf.render.figures.rendering import figure_bytes, figure_img, small_img
from mdir_hf.render.figures.survey_matrix import draw_survey_matrix

__all__ = [
    "CellGrid",
    "dendrogram_cells",
    "draw_dendrogram",
    "draw_figures",
    "draw_survey_matrix",
    "figure_bytes",
    "figure_cells",
    "figure_img",
    "small_img",
]
