"""What a release says of itself: addresses, a README that can be read anywhere, and workflows that fit the project."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from mdir_hf import __version__

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://example.org/someone/mdir-hf"


@pytest.fixture
def hook(monkeypatch):
    """The build hook, with nothing of hatchling but the name of its base class."""
    interface = types.ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    for name in ("GITHUB_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_REF_NAME", "GITHUB_REF_TYPE"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_and_picture_of_the_readme_leads_into_the_repository(hook):
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    after = hook.absolute_links(before, REPOSITORY, "v1.2.3")
    for address in re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', after):
        assert "".join(address).startswith("https://"), address
    local = re.findall(r'\]\((?!https?://)([^)]+)\)|src="(?!https?://)([^"]+)"', before)
    assert len(local) > 10
    for link, picture in local:
        assert (ROOT / (link or picture).partition("#")[0]).exists()
        assert (f"{REPOSITORY}/blob/v1.2.3/{link}" if link else f"{REPOSITORY}/raw/v1.2.3/{picture}") in after


def test_the_repository_is_the_one_that_ci_or_git_says_and_none_is_made_up(hook, monkeypatch, tmp_path):
    assert hook.repository_address(tmp_path) == ""
    (tmp_path / ".git").mkdir()
    for origin, address in [
        ("git@example.org:someone/mdir-hf.git", REPOSITORY),
        ("ssh://git@example.org/someone/mdir-hf.git", REPOSITORY),
        (f"{REPOSITORY}.git", REPOSITORY),
        ("https://me:secret@example.org/someone/mdir-hf", ""),
        ("/a/folder/of/mine", ""),
    ]:
        monkeypatch.setattr(hook, "_git", lambda root, *words, origin=origin: origin)
        assert hook.repository_address(tmp_path) == address, origin
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/mdir-hf")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    assert hook.repository_address(tmp_path) == REPOSITORY


def test_the_metadata_has_what_pyproject_leaves_open(hook, monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/mdir-hf")
    built = hook.RepositoryMetadata()
    built.root, metadata = str(ROOT), {}
    built.update(metadata)
    assert set(metadata) == {"readme", "urls"}
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source", "Paper"} == set(metadata["urls"])
    assert "https://github.com/someone/mdir-hf/raw/" in metadata["readme"]["text"]


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def test_the_tests_run_on_every_python_that_the_package_names_and_on_three_systems():
    matrix = workflow("tests.yml")["jobs"]["quick"]["strategy"]["matrix"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", project)
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_a_release_is_tested_built_and_checked_before_it_is_published_without_a_password():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = workflow("release.yml")["jobs"]
    assert set(jobs["publish"]["needs"]) == {"tests", "build"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "twine check --strict" in text
    assert "cyclonedx-py environment" in text
    assert "secrets." not in text and "password:" not in text


def test_the_pins_of_torch_agree():
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]
    for file in ("Makefile", ".github/workflows/tests.yml"):
        assert set(re.findall(r"torch==([\d.]+)", (ROOT / file).read_text(encoding="utf-8"))) == {pinned}, file


def test_every_pin_can_be_installed_by_the_first_releases_of_each_python_that_the_pins_are_for():
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    known = {distribution.metadata["Name"].lower(): distribution for distribution in metadata.distributions()}
    wanted = {name: known[name.lower()].metadata.get("Requires-Python") for name in pins if name.lower() in known}
    assert len(wanted) > len(pins) // 2  # the others are for other systems
    oldest = {"3.11.2", "3.12.3", "3.13.0"}  # Debian 12, Ubuntu 24.04, and before Debian 13
    refused = {name: asked for name, asked in wanted.items() if set(SpecifierSet(asked or "").filter(oldest)) != oldest}
    assert not refused


def test_the_demo_installs_only_what_it_needs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target = re.search(r"^demo: (\S+) ##", makefile, re.M)[1]
    recipe = makefile.split(f"\n{target}:", 1)[1].split("\n\n", 1)[0]
    assert "-e '.[demo]'" in recipe and "dev" not in recipe


def test_version_citation_and_changelog_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["title"], citation["version"], citation["license"]) == ("mdir-hf", __version__, "Apache-2.0")
    assert citation["preferred-citation"]["identifiers"][0]["value"].endswith("2508.06309")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", changes, re.M)
    assert all(re.fullmatch(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in headings)
    assert "[Unreleased]" not in headings[1:]
    released = [heading.split("]")[0].strip("[") for heading in headings if heading != "[Unreleased]"]
    # The version is the newest that has a date, or, before its release, what stands under the open heading.
    assert __version__ in released[:1] or "[Unreleased]" in headings
    assert released == sorted(released, key=lambda one: [int(part) for part in one.split(".")], reverse=True)
    parts = re.findall(r"^### (.+)$", changes, re.M)
    assert set(parts) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for said in re.findall(r"mdir-hf(?:==| |@v)(\d+\.\d+\.\d+)", page.read_text(encoding="utf-8")):
            assert said == __version__, page
