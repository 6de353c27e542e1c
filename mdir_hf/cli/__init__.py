"""The command line ``mdir-hf``, also installed as ``hf-mdir`` so that ``hf mdir`` works."""

from mdir_hf.cli.main import main

__all__ = ["main"]
