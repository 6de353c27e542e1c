"""The installation command that the package suggests for each way in which it may have been installed."""

import json
import shlex

import pytest

from mdir_hf import installing
from mdir_hf.installing import install_command


@pytest.fixture
def came_from(monkeypatch, tmp_path):
    """Pretend that the package is installed, not run from a clone, with the installer's record of its origin."""
    monkeypatch.setattr(installing, "_ROOT", tmp_path)
    monkeypatch.delenv(installing.ORIGIN_VARIABLE, raising=False)

    class Installed:
        """A distribution with or without a record of its source."""

        def __init__(self, noted):
            self.noted = noted

        def read_text(self, name):
            assert name == "direct_url.json"
            return None if self.noted is None else json.dumps(self.noted)

    return lambda noted: monkeypatch.setattr(installing, "distribution", lambda name: Installed(noted))


def test_a_package_from_an_index_is_installed_by_name(came_from):
    came_from(None)
    assert install_command("gguf") == "pip install 'mdir-hf[gguf]'"
    assert install_command() == "pip install mdir-hf"


def test_a_package_from_a_folder_or_wheel_is_installed_from_it(came_from, tmp_path):
    for name in ("a clone", "mdir_hf-0.1.0-py3-none-any.whl"):
        came_from({"url": (tmp_path / name).as_uri()})
        assert shlex.split(install_command("plot"))[2] == f"{tmp_path / name}[plot]"


def test_a_package_from_an_address_is_installed_from_there(came_from):
    came_from({"url": "https://example.org/x/mdir-hf", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}})
    assert shlex.split(install_command("plot"))[2] == "mdir-hf[plot] @ git+https://example.org/x/mdir-hf@0a1b"
    came_from({"url": "https://example.org/mdir_hf.whl", "archive_info": {}})
    assert shlex.split(install_command())[2] == "mdir-hf @ https://example.org/mdir_hf.whl"


def test_a_space_that_carries_a_wheel_says_its_address(came_from, monkeypatch):
    came_from(None)
    monkeypatch.setenv(installing.ORIGIN_VARIABLE, "https://example.org/x.whl")
    assert shlex.split(install_command("plot")) == ["pip", "install", "mdir-hf[plot] @ https://example.org/x.whl"]


def test_the_install_command_names_no_path_of_this_machine(came_from, tmp_path):
    came_from({"url": tmp_path.as_uri()})
    said = install_command("plot", for_others=True)
    assert str(tmp_path) not in said
    assert shlex.split(said, comments=True) == ["pip", "install", ".[plot]"]


def test_no_message_of_the_package_names_the_index_by_itself():
    package = installing._ROOT / "mdir_hf"
    written = [path for path in package.rglob("*.py") if "pip install 'mdir-hf" in path.read_text(encoding="utf-8")]
    assert written == []
