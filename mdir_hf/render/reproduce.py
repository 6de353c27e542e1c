"""Describe how to check a report, with shell and Python code that is safe to paste, and list the files read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from mdir_hf.names import shown_name
from mdir_hf.render.sections import Line, Listing, Section, SectionKind, Table, percent
from mdir_hf.report.models import ModelSummary
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.words import counted, n_bytes_text, range_text
from mdir_hf.thresholds import ALPHA

LONGEST_LINE = 80
REPORT_FILE = "report.json"
"""Name that the commands give to the report."""


def command_line(report: HomologyReport, file: str = REPORT_FILE) -> str:
    """Return the POSIX shell command that checks a report, which is stored as ``file``."""
    read_as = [*_options(report.reference, "--"), *_options(report.candidate, "--candidate-")]
    return _command(report.reference.pinned, report.candidate.pinned, *read_as, f"--check {_shell_word(file)}")


def compare_command(
    reference: str, candidate: str, *options: str, level: str = "auto", alpha: float = ALPHA, seed: int = 0
) -> str:
    """Return the POSIX shell command that compares two models; ``options`` are already quoted."""
    return _command(reference, candidate, *options, f"--level {level} --alpha {alpha!r} --seed {seed}")


def _command(reference: str, candidate: str, *options: str) -> str:
    words = ["mdir-hf compare", _shell_word(reference), _shell_word(candidate), *options]
    line = " ".join(words)
    return line if len(line) <= LONGEST_LINE else " \\\n  ".join(words)


def align_command(reference: str, candidate: str) -> str:
    """Return the POSIX shell command that aligns the candidate with the reference."""
    return f"mdir-hf align {_shell_word(reference)} {_shell_word(candidate)} --output aligned"


def python_lines(report: HomologyReport, file: str = REPORT_FILE) -> str:
    """Return the Python code that checks a report, which is stored as ``file``."""
    return "\n".join(
        [
            "from pathlib import Path",
            "",
            "from mdir_hf import HomologyReport, NamedModel, check_report",
            "",
            f'report = HomologyReport.from_json(Path({file!r}).read_text("utf-8"))',
            *_model_lines(report),
            "print(check_report(report, reference, candidate))",
        ]
    )


def comparison_lines(report: HomologyReport) -> str:
    """Return the Python code that makes a report's comparison again, on a new sample."""
    settings = f"level={report.level.value!r}, alpha={report.alpha!r}, seed={report.seed}"
    return "\n".join(
        [
            "from mdir_hf import NamedModel, compare",
            "",
            *_model_lines(report),
            f"print(compare(reference, candidate, {settings}))",
        ]
    )


def _model_lines(report: HomologyReport) -> tuple[str, str]:
    return (
        f"reference = NamedModel({_argument(report.reference)})",
        f"candidate = NamedModel({_argument(report.candidate)})",
    )


def _argument(model: ModelSummary) -> str:
    by_revision = model.commit is not None and model.file is None
    words = [repr(model.repo), f"revision={model.commit!r}"] if by_revision else [repr(model.pinned)]
    words += [f"{name}={value!r}" for name, value in _read_as(model)]
    bases = tuple(_hub_bases(model))
    return ", ".join([*words, f"{bases=}"] if bases else words)


def _options(model: ModelSummary, prefix: str) -> Iterator[str]:
    for name, value in [*_read_as(model), *(("base", base) for base in _hub_bases(model))]:
        # Joined with "=", so that a value beginning with a dash is not taken for an option.
        yield f"{prefix}{name}={_shell_word(value)}"


def _read_as(model: ModelSummary) -> Iterator[tuple[str, str]]:
    for name in ("subfolder", "variant", "tokenizer"):
        if value := getattr(model, name):
            # Only a URL can name a folder in a repository.
            is_inside = name == "tokenizer" and re.search("@[0-9a-f]{40}/", value)
            yield name, f"hf://models/{value}" if is_inside else value


def _hub_bases(model: ModelSummary) -> list[str]:
    """Return the bases of an adapter that are pinned to a commit, excluding folders."""
    return [base for base in model.bases or () if re.fullmatch("[^@]+@[0-9a-f]{40}", base)]


def _shell_word(text: str) -> str:
    if text.isprintable():
        return shlex.quote(text)
    # Escape invisible characters (line breaks, direction marks) in the shell's quoting.
    return "$'" + "".join(_shell_character(character) for character in text) + "'"


def _shell_character(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a path that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def reproduce_section(report: HomologyReport) -> Section:
    """Return the section on checking the report."""
    pinned = report.reference.commit is not None and report.candidate.commit is not None
    note = "Both commits are pinned." if pinned else "A local folder has no commit: keep its files unchanged."
    in_memory = report.reference.is_in_memory or report.candidate.is_in_memory
    if in_memory:
        note = "A model in memory cannot be opened again by name: save it, and compare the folder."
    return Section(
        SectionKind.REPRODUCE,
        "Reproduce",
        paragraphs=(
            f"Made by mdir-hf {report.version}. The commands read this report from report.json, compare the two models "
            f"again on the same sample, and say whether the verdict and every number are the same. {note}",
        ),
        code=() if in_memory else (Listing("sh", command_line(report)), Listing("python", python_lines(report))),
    )


def read_section(report: HomologyReport) -> Section:
    """Return the section on the bytes and files read, and the time taken."""
    io = report.io
    cached = f" and {n_bytes_text(io.bytes_from_cache)} from the cache" if io.bytes_from_cache else ""
    planned = ""
    if io.bytes_planned is not None:
        planned = f" (planned: {range_text(*map(n_bytes_text, io.bytes_planned))})"
    text = (
        f"{n_bytes_text(io.bytes_read)}{cached}{planned}, against {n_bytes_text(io.bytes_of_weights)} of weights "
        f"({share_read(report)}), in {counted(io.requests, 'request')} and {sum(report.seconds.values()):.1f} s"
    )
    steps = tuple((step, f"{seconds:.2f}") for step, seconds in report.seconds.items())
    files = tuple((str(place + 1), shown_name(file, length=160)) for place, file in enumerate(io.files))
    tables = [Table("Time of each step", ("step", "seconds"), steps)] if steps else []
    tables += [Table("Files read, in part or as a whole", ("", "file"), files)] if files else []
    return Section(
        SectionKind.READ,
        "Data read",
        brief=(Line("read", text),),
        paragraphs=(f"{text}.",),
        tables=tuple(tables),
        is_detail=True,
    )


def share_read(report: HomologyReport) -> str:
    """Format the share of the weights that was read."""
    return percent(report.io.share_read) if report.io.bytes_of_weights else "an unknown share"
