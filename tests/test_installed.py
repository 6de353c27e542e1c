"""The wheel works in a fresh environment, the sdist passes its own tests, and ``hf`` installs the extension."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
COMMIT = 40 * "a"

pytestmark = pytest.mark.slow


def run(*words, env=None, **options) -> str:
    """Run a program, without our PYTHONPATH, and return its standard output; fail with its standard error."""
    options["env"] = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (env or {})
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist of this clone, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    sources = archive.with_name(archive.name.removesuffix(".tar.gz"))
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=sources)
    (wheel,) = folder.glob("*.whl")
    return SimpleNamespace(folder=folder, sources=sources, wheel=wheel)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder with all installed packages except ours, so that no test needs a network or a copy of torch."""
    folder = tmp_path_factory.mktemp("libraries")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith(("mdir_hf", "_editable", "__editable__", "pip")):
            (folder / entry.name).symlink_to(entry)
    return folder


def lend(libraries: Path, environment: Path) -> None:
    """Make packages importable in a virtual environment."""
    (site_packages,) = (environment / "lib").glob("python*/site-packages")
    (site_packages / "lent.pth").write_text(f"{libraries}\n")


def test_the_wheel_works_in_a_fresh_environment(built, libraries, tmp_path):
    venv.create(tmp_path / "alone", with_pip=True)
    python = tmp_path / "alone" / "bin" / "python"
    lend(libraries, tmp_path / "alone")
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", built.wheel)
    installed = run(python, "-c", "import mdir_hf; print(mdir_hf.__file__)", cwd=tmp_path).strip()
    assert Path(installed).is_relative_to(tmp_path)
    tried = run(python, ROOT / "tests" / "try_installed.py")
    assert tried.count("ok: ") == 3, tried


def test_the_tests_of_the_sdist_find_what_they_import(built):
    here_only = {"PYTHONPATH": f"{built.sources}{os.pathsep}{built.sources / 'space'}"}
    words = ["--collect-only", "-q", "-m", "slow or not slow", "-p", "no:cacheprovider"]
    collected = run(sys.executable, "-m", "pytest", *words, cwd=built.sources, env=here_only)
    assert "error" not in collected.splitlines()[-1]
    found = {line.partition("::")[0] for line in collected.splitlines() if "::" in line}
    missing = {path for path in (ROOT / "tests").rglob("test_*.py") if path.relative_to(ROOT).as_posix() not in found}
    assert all("pytest.importorskip(" in path.read_text(encoding="utf-8") for path in missing), missing


class GitHub(SimpleHTTPRequestHandler):
    """Answers as GitHub does for a repository that is an extension: its archive, its commit, its pyproject.toml."""

    def do_GET(self):
        if self.path.startswith("/someone/hf-mdir.git/info/refs"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{COMMIT} HEAD\0".encode())
        else:
            super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def github(built, tmp_path):
    """The address of a loopback GitHub with the repository someone/hf-mdir."""
    repository = tmp_path / "served" / "someone" / "hf-mdir"
    (repository / "HEAD").mkdir(parents=True)
    shutil.copy(built.sources / "pyproject.toml", repository / "HEAD")
    shutil.make_archive(str(repository / "archive" / "HEAD"), "zip", built.folder, built.sources.name)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(GitHub, directory=tmp_path / "served"))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_hf_installs_and_runs_the_extension(github, libraries, tmp_path, monkeypatch, capfd):
    from huggingface_hub.cli import extensions, hf

    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HUB_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setattr(extensions.shutil, "which", lambda name: None)  # pip, not uv
    request, start = extensions._github_request, subprocess.run

    def at_loopback(text: str) -> str:
        return text.replace("https://github.com", github).replace("https://raw.githubusercontent.com", github)

    def run_without_network(words, **options):
        """Run pip on the loopback archive, without dependencies, which are lent."""
        if "install" in words:
            lend(libraries, home / ".local" / "share" / "hf" / "extensions" / "hf-mdir" / "venv")
            words = [*map(at_loopback, words), "--no-index", "--no-deps", "--no-build-isolation"]
        return start(words, **options)

    monkeypatch.setattr(
        extensions, "_github_request", lambda method, url, **how: request(method, at_loopback(url), **how)
    )
    monkeypatch.setattr(extensions.subprocess, "run", run_without_network)

    hf.app(["extensions", "install", "someone/hf-mdir"], standalone_mode=False)
    manifest = extensions.ExtensionManifest.load(home / ".local/share/hf/extensions/hf-mdir")
    assert (manifest.type, manifest.commit_sha) == ("python", COMMIT)
    assert "share weight ancestry" in manifest.description
    capfd.readouterr()
    monkeypatch.undo()

    environment = {"HOME": str(home), "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    in_hf = partial(run, sys.executable, "-m", "huggingface_hub.cli.hf", env=environment, cwd=tmp_path)
    assert in_hf("mdir", "--help").startswith("usage: hf mdir ")
    assert "hf mdir compare" in in_hf("mdir", "compare", "--help")
    assert "[extension someone/hf-mdir]" in in_hf("--help")
