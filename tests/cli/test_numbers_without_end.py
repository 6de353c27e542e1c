"""Integers of hundreds of digits give a one-line error or a result."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mdir_hf.cli.main import main

REPORT = json.loads((Path(__file__).parents[2] / "space" / "examples" / "other-tokenizer.json").read_text("utf-8"))


def numbers(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of the numbers in a report, with only the first two items of each list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, (*place, name))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:2]):
            yield from numbers(inner, (*place, at))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place


def badge(capsys, folder: Path, text: str) -> int:
    (folder / "report.json").write_text(text)
    status = main(["card", str(folder / "report.json"), "--output", str(folder / "out")])
    said = capsys.readouterr().err
    if status:
        assert status == 1
        assert said.startswith("mdir-hf: error: ") and said.count("\n") == 1
        assert len(said) < 1000
    return status


def test_a_badge_of_a_report_with_one_such_number(tmp_path, capsys):
    places = list(numbers(REPORT))
    assert len(places) > 50
    for place in places:
        report = json.loads(json.dumps(REPORT))
        holder = report
        for name in place[:-1]:
            holder = holder[name]
        holder[place[-1]] = "here"
        for digits in ("9" * 400, "-" + "9" * 400, "9" * 5000):
            badge(capsys, tmp_path, json.dumps(report).replace('"here"', digits))


@pytest.mark.parametrize("seed", ["-1", "9" * 400, "²"])
def test_invalid_seeds(tmp_path, capsys, seed):
    try:
        status = main(["compare", str(tmp_path), str(tmp_path), "--seed", seed])
    except SystemExit as exc:  # argparse exits by itself
        status = exc.code
    said = capsys.readouterr().err
    assert status in (1, 2)
    assert "Traceback" not in said and said.strip().splitlines()[-1].startswith("mdir-hf")
