"""Programs killed while they write, at a few points here; ``make faults`` tries 200 of each."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.programs import machine, spread
from tests.faults.property import Outcome, hold, hold_on_full_disk, small_disk
from tests.lineage.cards.reports import a_report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and signals")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with machine(tmp_path_factory.mktemp("faults")) as found:
        yield found


LONG = [(name, 3) for name in ("comparison", "survey")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"), [("badge", 4), ("publication", 4), ("aligned model", 6), ("saved report", 4), *LONG]
)
def test_a_killed_run_leaves_valid_files_and_can_be_repeated(running, tmp_path, name, most):
    outcome = hold(running, name, tmp_path, most=most, outcome=Outcome())
    assert outcome.broken == []
    assert outcome.n_ended == outcome.n_faults > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["survey", "badge", "aligned model"])
def test_a_full_disk_gives_one_line_and_leaves_no_damage(running, tmp_path, name):
    assert hold(running, name, tmp_path, most=2, fault="full", outcome=Outcome()).broken == []
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        if disk is None:
            pytest.skip("this user may not mount disks")
        assert hold_on_full_disk(running, name, tmp_path / "small", most=2, disk=disk, outcome=Outcome()).broken == []


@pytest.mark.slow
def test_a_half_written_file_is_detected(running, tmp_path, monkeypatch):
    program = running.programs["badge"]
    careless = type(program)(
        lambda place: ["write carelessly", str(place / "out")],
        program.product,
        lambda place, whole: program.is_sound(place, whole),
    )
    monkeypatch.setattr(type(running), "programs", {"badge": careless})
    assert any("invalid files" in words for words in hold(running, "badge", tmp_path, most=3, outcome=Outcome()).broken)


def test_points_are_spread_over_the_whole_run():
    assert list(spread(11, 3)) == [1, 6, 11]
    assert list(spread(4, 200)) == [1, 2, 3, 4]
    assert list(spread(0, 5)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_an_answer_that_cannot_be_written_gives_one_line(tmp_path):
    (tmp_path / "report.json").write_text(a_report().to_json())
    command = [
        sys.executable,
        "-m",
        "mdir_hf",
        "card",
        str(tmp_path / "report.json"),
        "--output",
        str(tmp_path / "out"),
    ]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "mdir-hf: error: cannot write to standard output: No space left on device\n"
