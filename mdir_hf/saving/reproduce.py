"""How to get the same report again: a command and a few lines of Python, safe to paste whatever a model is called."""

from __future__ import annotations

import shlex

from mdir_hf.report import HomologyReport, ModelSummary


def command_line(report: HomologyReport) -> str:
    """The command for a POSIX shell."""
    models = (_shell_word(_pinned(model)) for model in (report.reference, report.candidate))
    settings = f"--level {report.level} --alpha {report.alpha!r} --seed {report.seed}"
    return " \\\n  ".join(["mdir-hf compare", *models, settings])


def python_lines(report: HomologyReport) -> str:
    """The same in Python."""
    settings = f"alpha={report.alpha!r}, seed={report.seed}"
    return "\n".join(
        [
            "from mdir_hf import HomologyChecker",
            "",
            f"checker = HomologyChecker.from_pretrained({_argument(report.reference)}, {settings})",
            f"print(checker.compare({_argument(report.candidate)}, level={report.level!r}))",
        ]
    )


def _pinned(model: ModelSummary) -> str:
    return f"{model.repo}@{model.commit}" if model.commit else model.repo


def _argument(model: ModelSummary) -> str:
    return repr(model.repo) + (f", revision={model.commit!r}" if model.commit else "")


def _shell_word(text: str) -> str:
    if text.isprintable():
        return shlex.quote(text)
    # What cannot be seen (line breaks, marks of direction) is written out, in the quoting that shells have for that.
    return "$'" + "".join(_shell_character(character) for character in text) + "'"


def _shell_character(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a path that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
