"""The folder for upload: its card, its requirements, and that it needs nothing else."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mdir_hf import __version__

ROOT = Path(__file__).parent.parent.parent
SPACE = ROOT / "space"


@pytest.fixture(scope="module")
def card():
    _, front_matter, body = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front_matter), body


def test_the_card_asks_for_what_the_page_needs(card):
    fields, _ = card
    assert (fields["sdk"], fields["app_file"], fields["license"]) == ("gradio", "app.py", "apache-2.0")
    assert fields["hf_oauth"] is True
    assert fields["hf_oauth_scopes"] == ["gated-repos"]
    assert "mcp-server" in fields["tags"]
    assert len(fields["short_description"]) <= 60  # the Hub refuses more
    assert fields["python_version"] in ("3.12.12", "3.10.13")  # the version on ZeroGPU


def test_the_card_names_the_gradio_that_is_tested(card):
    pinned = re.search(r"^gradio==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert card[0]["sdk_version"] == pinned[1]


def test_the_requirements_are_pinned_to_this_package():
    lines = [line for line in (SPACE / "requirements.txt").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == f"mdir-hf[space]=={__version__}"
    assert lines[1:] == ["torch>=2.8,<2.12"]


def test_the_card_lists_every_limit_with_its_default(card):
    from dataclasses import fields

    from mdir_space.jobs.limits import CPU_BASIC, Limits

    told = dict(re.findall(r"`(MDIR_SPACE_\w+)` \| (\d+)", card[1]))
    assert told == {f"MDIR_SPACE_{f.name.upper()}": f"{getattr(CPU_BASIC, f.name):.0f}" for f in fields(Limits)}


def test_the_sentence_about_the_cache_is_the_same_everywhere():
    from mdir_space.jobs.results import WHAT_IS_KEPT
    from mdir_space.page.page import footer

    texts = [(ROOT / path).read_text() for path in ("space/README.md", "docs/guides/space.md", "SECURITY.md")]
    for said in (footer(), *texts):
        assert WHAT_IS_KEPT in " ".join(said.split())
        assert "no run is recorded" not in said


def test_no_file_is_too_large_for_git_on_the_hub():
    assert all(path.stat().st_size < 10 << 20 for path in SPACE.rglob("*") if "__pycache__" not in path.parts)


def test_the_wheel_holds_the_space():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[tool.hatch.build.targets.wheel.force-include]\n"space" = "mdir_hf/_space"\n' in project


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("space") / "uploaded"
    command = [sys.executable, str(ROOT / "docs" / "make_space_folder.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """An interpreter with the packages of this one except mdir_hf."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    python = next(path for path in (home / "bin" / "python", home / "Scripts" / "python.exe") if path.exists())
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    (Path(packages) / "host.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


SPACES = """
import sys
assert "torch" not in sys.modules
found = []
def GPU(duration):
    return lambda function: found.append((function.__name__, duration)) or function
"""
"""The module ``spaces`` of ZeroGPU machines, which must be imported before torch."""


@pytest.mark.slow
class TestTheFolderThatIsUploaded:
    """The result of ``make space-folder`` works without the clone and without a package index."""

    def run(self, python, folder, script, **environment):
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MDIR", "SPACE"))}
        environment = {**bare, "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", **environment}
        return subprocess.run(
            [python, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def test_its_requirements_match_the_package(self, folder):
        lines = [line for line in (folder / "requirements.txt").read_text().splitlines() if line[0] != "#"]
        required = [Requirement(line) for line in lines]
        names = [canonicalize_name(requirement.name) for requirement in required]
        assert len(names) == len(set(names))
        assert "mdir-hf" not in names
        assert {"numpy", "gradio", "matplotlib", "gguf", "huggingface-hub"} <= set(names)
        for requirement in required:
            if requirement.name != "torch":  # the newest on ZeroGPU; tests may run on a newer one
                assert requirement.specifier.contains(version(requirement.name)), requirement

    def test_the_app_starts_with_the_package_that_it_carries(self, folder, bare_python, tmp_path):
        (tmp_path / "spaces.py").write_text(SPACES)
        script = "import mdir_hf.errors"  # an editable install leaves an empty folder of the name
        with pytest.raises(subprocess.CalledProcessError):
            self.run(bare_python, folder, script)
        script = "import app, mdir_hf, spaces; print(spaces.found, type(app.demo).__name__, mdir_hf.__file__, sep='|')"
        printed = self.run(bare_python, folder, script, PYTHONPATH=str(tmp_path)).splitlines()[-1]
        found, kind, file = printed.split("|")
        assert found == "[('none_is_needed', 1)]"  # with the GPU of ZeroGPU
        assert kind == "Blocks"
        assert Path(file).parent.parent.name.startswith("mdir-hf-")

    def test_the_install_command_names_the_wheel_of_the_space(self, folder, bare_python):
        script = (
            "import carried; carried.use_carried_wheel(); from mdir_hf.installing import install_command; "
            "print(install_command())"
        )
        said = self.run(bare_python, folder, script, SPACE_ID="me/lineage", HF_ENDPOINT="https://example.org")
        wheel = next(folder.glob("*.whl")).name
        assert said == f"pip install 'mdir-hf @ https://example.org/spaces/me/lineage/resolve/main/{wheel}'"
