"""Requirements of a release: valid links in the README, metadata, installable pins, consistent versions."""

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
    """The build hook, with a stand-in for its base class from hatchling."""
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


def test_every_link_of_the_readme_leads_into_the_repository(hook):
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    after = hook.absolute_links(before, REPOSITORY, "v1.2.3")
    for address in re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', after):
        assert "".join(address).startswith("https://"), address
    local = re.findall(r'\]\((?!https?://)([^)]+)\)|src="(?!https?://)([^"]+)"', before)
    assert len(local) > 10
    for link, picture in local:
        assert (ROOT / (link or picture).partition("#")[0]).exists()
        assert (f"{REPOSITORY}/blob/v1.2.3/{link}" if link else f"{REPOSITORY}/raw/v1.2.3/{picture}") in after


def test_the_repository_comes_from_ci_or_git(hook, monkeypatch, tmp_path):
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


def test_the_build_hook_completes_the_metadata(hook, monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/mdir-hf")
    built = hook.RepositoryMetadata()
    built.root, metadata = str(ROOT), {}
    built.update(metadata)
    assert set(metadata) == {"readme", "urls"}
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source", "Paper"} == set(metadata["urls"])
    assert "https://github.com/someone/mdir-hf/raw/" in metadata["readme"]["text"]


def test_every_pin_can_be_installed_by_each_python():
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    known = {distribution.metadata["Name"].lower(): distribution for distribution in metadata.distributions()}
    wanted = {name: known[name.lower()].metadata.get("Requires-Python") for name in pins if name.lower() in known}
    assert len(wanted) > len(pins) // 2  # the others are for other systems
    oldest = {"3.11.2", "3.12.3", "3.13.0"}  # Debian 12, Ubuntu 24.04, and before Debian 13
    refused = {name: asked for name, asked in wanted.items() if set(SpecifierSet(asked or "").filter(oldest)) != oldest}
    assert not refused


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = re.findall(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    pinned = re.search(r"^mdir-hf\[.*\]==(.+)$", (ROOT / "space" / "requirements.txt").read_text("utf-8"), re.M)[1]
    assert {citation["version"], changes[0], pinned} == {__version__}


def test_hooks_before_a_commit_run_the_checks():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    checks = re.findall(r"^\t\$\(BIN\)/((?:ruff|mypy).*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert len(checks) == 3
    for check, hook in zip(checks, hooks, strict=True):
        assert hook["entry"].startswith(f".venv/bin/{check.removesuffix(' --check')}")


def test_workflows_run_what_a_clone_runs():
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    assert any(step.get("run") == ".ci/run" for step in steps["everything"]["steps"])
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "uses: ./.github/workflows/tests.yml" in release and "tests/try_installed.py" in release


def test_templates_of_issues_ask_for_what_is_needed():
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    templates = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*.yml")}
    assert set(templates) == {"config", "wrong_answer", "bug", "model_family"}
    for name in set(templates) - {"config"}:
        template = templates[name]
        assert template["name"] and template["description"]
        assert any(field.get("validations", {}).get("required") for field in template["body"])
