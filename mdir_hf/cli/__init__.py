"""The ``mdir-hf`` command line, also ``hf-mdir`` for ``hf mdir``."""

from mdir_hf.cli.main import main

__all__ = ["main"]
