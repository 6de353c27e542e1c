"""Test every extra alone, in an environment with its declared packages and nothing else.

Installed packages are linked into separate environments, so nothing is fetched and torch is not copied.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.gguf_writer import Type, gguf_bytes
from tests.model.files.gguf.test_gguf_source import random_blocks
from tests.onnx_exporter import write_onnx
from tests.specimens import gaussian, write_model

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 does not read pyproject.toml")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

SURVEY = "from mdir_hf.cli import main; assert main(['survey', 'a', 'b', 'c', '--output', 'out', '--quiet', {}]) == 0; "
USES = {
    "": """
from importlib.util import find_spec
from mdir_hf import compare
assert compare("a", "b", progress=False).verdict.value == "homologous"
brought = ("matplotlib", "transformers", "gradio", "distributed", "Bio", "gguf", "mkdocs", "cyclonedx", "onnx")
assert not any(map(find_spec, brought)), [name for name in brought if find_spec(name)]
""",
    "plot": f"""
{SURVEY.format("")}
from pathlib import Path
assert Path("out/matrix.svg").stat().st_size and Path("out/dendrogram.png").stat().st_size
from mdir_hf import compare
assert compare("a", "b", progress=False).figures()
""",
    "tree": f"""
{SURVEY.format("'--tree'")}
import json
from pathlib import Path
(tree,) = json.loads(Path("out/tree.json").read_text())["trees"]
assert tree["newick"], tree["notes"]
""",
    "gguf": """
from pathlib import Path
import numpy as np
from mdir_hf.model.files.formats import open_checkpoint
from mdir_hf.model.hub.local import LocalRepository
assert open_checkpoint(LocalRepository(Path("packed"))).read_rows("packed", np.array([0])).isfinite().all()
""",
    "onnx": """
from pathlib import Path
from mdir_hf.model.files.formats import open_checkpoint
from mdir_hf.model.hub.local import LocalRepository
assert open_checkpoint(LocalRepository(Path("exported"))).read("h.up.weight").shape == (3, 4)
""",
    "bom": """
import json
from cyclonedx.model.bom import Bom
from mdir_hf import compare, make_bom
from mdir_hf.lineage.bom.read import read_bom
text = make_bom(compare("a", "b", progress=False))
(model,) = Bom.from_json(json.loads(text)).components
assert [one.name for one in model.pedigree.variants] == ["a"]
assert len(read_bom(text.encode()).models) == 1
""",
    "cluster": f"""
from distributed import LocalCluster
with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
    {SURVEY.format("'--scheduler', cluster.scheduler_address")}
""",
    "demo": """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from mdir_hf import compare, make_bom
from mdir_hf.demo.training import BEGIN, END, train_byte_level_bpe
from mdir_hf.demo.training import encode, train
text = ["the demo trains small models on the text of this machine " * 40]
tokenizer = train_byte_level_bpe(text, vocabulary_size=300)
sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=tokenizer.get_vocab_size(), **sizes))
for name in ("base", "tuned"):
    train(model, encode(tokenizer, text), steps=1, learning_rate=1e-3, batch=(2, 16), order_seed=0)
    model.save_pretrained(name)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(name)
assert compare("base", "tuned", progress=False).figures()
""",
    "space": """
import subprocess, sys
from mdir_hf.cli.space import space_folder
subprocess.run([sys.executable, "-m", "mdir_hf", "space", "--help"], check=True, stdout=subprocess.DEVNULL)
sys.path.insert(0, str(space_folder()))
from mdir_space.jobs.access import find_access
from mdir_space.jobs.service import Service, ServiceSettings
from mdir_space.jobs.survey import SurveyJob
from mdir_space.page.page import build_page, launch_options
from mdir_space.html.survey_card import survey_card
from mdir_space.jobs.question import SurveyQuestion
question = SurveyQuestion(("./a", "./b", "./c"))
access = find_access(question, None, allow_local=True, may_sign_in=False)
found = SurveyJob(access=access, question=question, allow_local=True).run(lambda event: None)
assert set(found.pictures) == {"matrix", "dendrogram"} and found.trees[0].newick, found.trees
assert "All of them form one family" in survey_card(found, question)
service = Service(ServiceSettings())
build_page(service), launch_options(service, "127.0.0.1")
""",
    "docs": f"""
import os
os.chdir({str(ROOT)!r})
from mkdocs.config import load_config
assert {{"material/search", "mkdocstrings"}} <= set(load_config("mkdocs.yml").plugins)
""",
}


def test_every_extra_has_a_use():
    assert set(USES) - {""} == set(EXTRAS) - {"dev"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    base = gaussian(1200, 64, 0)
    for at, name in enumerate("abc"):
        write_model(folder / name, base + 0.1 * at * gaussian(1200, 64, at))
    (folder / "packed").mkdir()
    blocks = {"packed": (random_blocks("Q4_K", (2, 256)), Type.Q4_K)}
    (folder / "packed" / "model.gguf").write_bytes(gguf_bytes(blocks))
    (folder / "exported").mkdir()
    write_onnx(folder / "exported" / "model.onnx", {"h.up.weight": torch.ones(3, 4)})
    return folder


CHILDREN = """
import importlib, json, multiprocessing, os, sys
from mdir_hf import HomologyChecker  # with all that this imports; every extra builds on it
for line in sys.stdin:
    use, python, packages, said = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 1
        with open(said, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            sys.path = [packages if path.endswith("site-packages") else path for path in sys.path]
            sys.executable = python
            multiprocessing.set_executable(python)
            importlib.invalidate_caches()
            os.chdir(os.path.dirname(said))
            exec(use, {"__name__": "__main__"})
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process without extras that imports torch once; each child gets the packages of one extra."""


@pytest.fixture(scope="module")
def bare_process(tmp_path_factory):
    """The process of :data:`CHILDREN`: it reads a line of JSON and answers with an exit status."""
    folder = tmp_path_factory.mktemp("bare")
    python, _ = environment(folder / "environment", "")
    outside = {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [python, "-c", CHILDREN], env=outside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("extra", USES, ids=lambda extra: extra or "none")
def test_an_extra_alone_serves_its_purpose(extra, models, bare_process, tmp_path):
    python, packages = environment(tmp_path / "environment", extra)
    work = tmp_path / "work"
    work.mkdir()
    for model in models.iterdir():
        (work / model.name).symlink_to(model)
    said = work / "said.txt"
    bare_process.stdin.write(json.dumps([USES[extra], str(python), str(packages), str(said)]) + "\n")
    bare_process.stdin.flush()
    status = bare_process.stdout.readline()
    assert status == "0\n", said.read_text()[-3000:]


def environment(folder: Path, extra: str) -> tuple[Path, Path]:
    """Create an environment with this package, its dependencies and one of its extras.

    Returns:
        The interpreter and the folder of its packages.
    """
    venv.create(folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    for found in declared(extra):
        for file in found.files or ():
            top = file.parts[0]
            if top == ".." or (len(file.parts) == 1 and file.suffix == ".pth"):
                continue
            place = packages / (top if len(owners()[top]) == 1 else file)  # some packages share a folder
            if not place.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(found.locate_file(place.relative_to(packages)))
    (packages / "mdir_hf").symlink_to(ROOT / "mdir_hf")
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python", packages


def declared(extra: str) -> list[Distribution]:
    """All packages that this package needs with an extra."""
    found: dict[str, Distribution] = {}
    asked: set[tuple[str, str]] = set()
    to_do = [Requirement(f"mdir-hf[{extra}]" if extra else "mdir-hf")]
    while to_do:
        wanted = to_do.pop()
        name = canonicalize_name(wanted.name)
        for option in ("", *wanted.extras):
            if (name, option) in asked:
                continue
            asked.add((name, option))
            if name == "mdir-hf":
                own = map(Requirement, EXTRAS[option] if option else PROJECT["dependencies"])
                to_do += [needs for needs in own if needs.marker is None or needs.marker.evaluate()]
                continue
            found[name] = installed()[name]
            for line in found[name].requires or ():
                needs = Requirement(line)
                if needs.marker is None or needs.marker.evaluate({"extra": option}):
                    to_do.append(needs)
    return list(found.values())


@cache
def installed() -> dict[str, Distribution]:
    return {canonicalize_name(each.name): each for each in distributions()}


@cache
def owners() -> dict[str, set[str]]:
    """Which distributions have files in a top-level folder."""
    found = defaultdict(set)
    for name, each in installed().items():
        for file in each.files or ():
            found[file.parts[0]].add(name)
    return found
