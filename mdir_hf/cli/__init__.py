"""The ``mdir-hf`` command line."""

from mdir_hf.cli.main import main

__all__ = ["main"]
