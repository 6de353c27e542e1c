"""Where the command line writes. Names of strangers are in most of it; a terminal would obey what stands in them."""

from __future__ import annotations

import sys

from mdir_hf.names import visible_text


def say(text: str) -> None:
    """Write an answer to standard output."""
    sys.stdout.write(visible_text(text, keeps_lines=True))


def remark(text: str) -> None:
    """Write what is no answer to standard error."""
    sys.stderr.write(visible_text(text, keeps_lines=True))
