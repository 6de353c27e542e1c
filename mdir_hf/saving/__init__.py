"""``compare --save``: a folder with the report as JSON, Markdown and one self-contained page, and its figures."""

from mdir_hf.saving.folder import check_save_folder, save_report

__all__ = ["check_save_folder", "save_report"]
