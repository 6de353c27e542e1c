"""Modules that ``import mdir_hf`` must not load."""

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "gradio",
    "scipy",
    "numpy",
    "matplotlib",
    "huggingface_hub",
    "safetensors",
}


def loaded_by(statement):
    script = f"import sys; {statement}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert output.stderr == ""
    return set(output.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import mdir_hf",
        "import mdir_hf.errors",
        "from mdir_hf import __version__",
        "from mdir_hf import HomologyReport, Verdict",
    ],
)
def test_imports_without_maths_load_no_maths_libraries(statement):
    assert loaded_by(statement) & HEAVY == set()


def test_importing_the_checker_loads_no_models_plots_or_space():
    assert (
        loaded_by("from mdir_hf import HomologyChecker") & {"transformers", "tokenizers", "matplotlib", "gradio"}
        == set()
    )


def test_a_badge_needs_no_maths():
    statement = "from mdir_hf import make_badge; import mdir_hf.lineage.cards.badge_folder"
    assert loaded_by(statement) & HEAVY <= {"huggingface_hub"}


def test_the_names_of_the_package_are_listed_without_loading_them():
    loaded = loaded_by("import mdir_hf; assert 'HomologyChecker' in dir(mdir_hf)")

    assert "mdir_hf" in loaded
    assert loaded & HEAVY == set()
