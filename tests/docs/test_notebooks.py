"""The notebooks run from beginning to end on the demo's models, and reproduce their stored output except numbers.

``python -m tests.docs.test_notebooks`` runs them on ``demo-out`` and stores their output.
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from mdir_hf.cli.main import build_parser
from tests.benchmarks.evidence import IS_WITH_THE_SCRIPTS, WITH_THE_SCRIPTS

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def run(notebook, place):
    """Run a notebook in a folder, and return it with its output."""
    read = nbformat.read(notebook, as_version=4)
    NotebookClient(read, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    for cell in read.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            # Warnings about the installation, which contain local paths.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.pop("execution_count", None)
    return read


def printed(notebook):
    """Yield the sorted words of each output without numbers and tree lines, and the types of its pictures.

    Numbers decide where lines are wrapped, so lines are not compared.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            text = output.get("text") or " ".join(sorted(set(output.get("data", {})) - {"text/plain"}))
            words = re.sub(r"-?\d[\d.,]*( [kMG]?B)?", "0", text)
            yield sorted(re.sub(r"[_|,]", " ", words).split())


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The folders that notebooks use, with the demo's models, and a PATH with the program."""
    from tests.trained.models import demo_lineage, one_step_lineage

    # One training step distinguishes relatives from strangers; only a tree needs more.
    made = demo_lineage() if IS_WITH_THE_SCRIPTS else one_step_lineage()
    place = tmp_path / "docs" / "notebooks"
    place.mkdir(parents=True)
    # Not a link, so that notebooks write nothing next to the cached models.
    shutil.copytree(made.folder, tmp_path / "demo-out" / "models")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return place


def environment():
    """Return environment variables for this package without network access."""
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # on a slow machine, a bar would appear after two seconds
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in the kernel's packages
@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, marks=WITH_THE_SCRIPTS if path.stem == "family-tree" else (), id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_reproduces_its_stored_output(notebook, desk):
    assert list(printed(run(notebook, desk))) == list(printed(nbformat.read(notebook, as_version=4)))


def test_the_commands_of_notebooks_parse():
    commands = []
    for notebook in NOTEBOOKS:
        for cell in nbformat.read(notebook, as_version=4).cells:
            lines = cell.source.replace("\\\n", " ").splitlines() if cell.cell_type == "code" else ()
            commands += [shlex.split(line)[1:] for line in lines if line.startswith("!mdir-hf ")]
    assert commands
    for words in commands:
        build_parser().parse_args(words)


def test_the_notebooks_are_stored_with_output():
    assert [notebook.stem for notebook in NOTEBOOKS] == ["family-tree", "first-comparison"]
    for notebook in NOTEBOOKS:
        read = nbformat.read(notebook, as_version=4)
        assert all(cell.outputs for cell in read.cells[2:] if cell.cell_type == "code")
        assert "site-packages" not in notebook.read_text(encoding="utf-8")


if __name__ == "__main__":
    os.environ |= environment()
    for each in NOTEBOOKS:
        nbformat.write(run(each, each.parent), each)
