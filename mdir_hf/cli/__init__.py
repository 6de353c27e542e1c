"""The command line ``mdir-hf``, also ``hf-mdir`` for ``hf mdir``."""

from mdir_hf.cli.main import main

__all__ = ["main"]
