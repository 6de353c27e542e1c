"""Every example of README, the site and the docstrings runs, against a Hub on this machine.

The examples of a page run one after another in one folder and one namespace, as a reader would type them. Python runs
unchanged. In shell blocks, our commands run, and the file after a ``>`` is written; installs and builds are checked
against pyproject and the Makefile. Text blocks do not run, but our commands in them must parse.

The recipes of ``docs/scale.md`` and of the atlas need the Hub's Jobs or hundreds of models, so they only have to parse.
"""

import importlib
import io
import pkgutil
import re
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from doctest import ELLIPSIS
from pathlib import Path

import pytest
import torch
import yaml
from sybil.document import Document, PythonDocStringDocument
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

import mdir_hf
from mdir_hf.cli.main import build_parser, main
from tests.specimens import gaussian, write_model

ROOT = Path(__file__).parents[2]
# A Trainer requests pinned memory even without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory':UserWarning")

MADE_BY_OTHERS = {"scale.md", "atlas.md", "evidence.md", "coverage.md"}
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in MADE_BY_OTHERS)]
WITH_EXAMPLES = [
    pytest.param(page, marks=pytest.mark.slow if page.parent.name == "guides" else ())
    for page in PAGES
    if "```" in page.read_text(encoding="utf-8")
]
V, N = 1200, 64
BASE, STRANGER = gaussian(V, N, 0), gaussian(V, N, 10)
MODELS = {
    "Qwen/Qwen2.5-0.5B": BASE,
    "someone/their-model": BASE[:, torch.randperm(N, generator=torch.Generator().manual_seed(3))],
    "owner/base": BASE,
    "me/tuned": BASE + 0.2 * gaussian(V, N, 1),
    "me/merge": BASE + 0.1 * gaussian(V, N, 1),  # half of each
    "other/base": STRANGER,
    "run/checkpoint-100": BASE + 0.1 * gaussian(V, N, 4),
    "run/checkpoint-200": BASE + 0.3 * gaussian(V, N, 5),
}

RECIPE = """merge_method: linear
models:
  - {model: owner/base, parameters: {weight: 0.5}}
  - {model: me/tuned, parameters: {weight: 0.5}}
"""
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": N,
    "tie_word_embeddings": True,
}


def one_layer(seed):
    """Return the tensors besides the embedding that transformers needs to load a one-layer Llama."""
    names = [f"self_attn.{letter}_proj" for letter in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    weights = {f"model.layers.0.{name}.weight": gaussian(N, N, seed + place) for place, name in enumerate(names)}
    norms = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
    return weights | {f"{name}.weight": torch.ones(N) for name in norms}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The models in the examples."""
    place = tmp_path_factory.mktemp("models")
    made = {
        name: write_model(
            place / name.replace("/", "-"),
            rows,
            config={**CONFIG, "vocab_size": V, "hidden_size": N},
            further=one_layer(seed=200 if rows is STRANGER else 100),
        )
        for name, rows in MODELS.items()
    }
    (made["me/tuned"] / "README.md").write_text("---\nbase_model: owner/base\n---\n# Tuned\n", encoding="utf-8")
    (made["me/merge"] / "mergekit_config.yml").write_text(RECIPE)
    return made


@pytest.fixture
def desk(folders, loopback_hub, tmp_path, monkeypatch, without_xet):
    """A working folder with the checkpoints of a run, and a Hub with all repositories of the examples."""
    place = tmp_path / "desk"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_TOKEN", loopback_hub.token)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name, folder in folders.items():
        if name.startswith("run/"):
            shutil.copytree(folder, place / name)
        else:
            loopback_hub.add_repository(name, folder)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").write_text("# Results\n")
    loopback_hub.add_repository("me/results", tmp_path / "results", kind="dataset")
    return place


def run_shell(example):
    """Run the commands of a block, with lines continued by backslashes."""
    for line in example.parsed.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M), line
        elif words[:2] == ["pip", "install"]:
            extras = re.search(r"\[(.+)\]", words[2])
            for extra in extras[1].split(",") if extras else ():
                assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M), line
        else:
            assert words[0] == "mdir-hf", f"this test cannot run {line!r}"
            target = None
            if ">" in words:
                words, target = words[: words.index(">")], words[words.index(">") + 1]
            printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
            with redirect_stdout(printed):
                status = main(words[1:])
            assert status == 0, line
            if target:
                printed.flush()
                Path(target).write_bytes(printed.buffer.getvalue())


def parse_only(example):
    """Check that our commands in a block of text parse."""
    for line in example.parsed.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if line.startswith("mdir-hf ") else []
        if words and "…" not in line:
            build_parser().parse_args(words[1:])


def parse_yaml(example):
    """Check that a block of YAML, such as a GitHub workflow, is valid."""
    assert yaml.safe_load(example.parsed)


PARSERS = (
    PythonCodeBlockParser(),
    CodeBlockParser("sh", run_shell),
    CodeBlockParser("text", parse_only),
    CodeBlockParser("yaml", parse_yaml),
)
FENCES = {"python", "sh", "text", "yaml"}


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run(page, desk):
    document = Document.parse(str(page), *PARSERS)
    fences = re.findall(r"^ *```(\w+)", page.read_text(encoding="utf-8"), re.M)
    examples = list(document.examples())
    hidden = page.read_text(encoding="utf-8").count("<!-- invisible-code-block: python")
    assert sum(fence in FENCES for fence in fences) + hidden == len(examples)
    assert set(fences) <= FENCES, "a block that this test cannot run"
    for example in examples:
        example.evaluate()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("page", ["scale.md", "guides/atlas.md"])
def test_recipes_for_the_hubs_machines_parse(page):
    scripts = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)
    commands = []
    for script in scripts:
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0, script
        filled = script.replace('"$@"', "--author some-lab").replace("${CPU_CORES%.*}", "8")
        lines = filled.replace("\\\n", " ").splitlines()
        commands += [shlex.split(line, comments=True) for line in lines if line.startswith("mdir-hf ")]
    assert commands
    for _, *words in commands:
        end = min((words.index(mark) for mark in (">", "||") if mark in words), default=None)
        build_parser().parse_args(words[:end])


def modules():
    names = [found.name for found in pkgutil.walk_packages(mdir_hf.__path__, "mdir_hf.")]
    files = {name: Path(importlib.util.find_spec(name).origin) for name in names if "__main__" not in name}
    return [name for name, file in files.items() if ">>>" in file.read_text(encoding="utf-8")]


def training():
    """Names that examples of training need: a model of the run, its tokenizer, and the arguments of a Trainer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    place = "run/checkpoint-100"
    data = [{"input_ids": list(range(i, i + 8)), "labels": list(range(i, i + 8))} for i in range(32)]
    return {
        "model": AutoModelForCausalLM.from_pretrained(place),
        "tokenizer": AutoTokenizer.from_pretrained(place),
        "batches": data[:2],
        "train_on": lambda batch: None,
        "Trainer": Trainer,
        "arguments": TrainingArguments("tuned", max_steps=2, report_to="none"),
        "data": data,
    }


@pytest.mark.parametrize(
    "module", [pytest.param(one, marks=pytest.mark.slow if "training" in one else ()) for one in modules()]
)
def test_the_examples_of_docstrings_run(module, desk):
    file = importlib.util.find_spec(module).origin
    document = PythonDocStringDocument.parse(file, DocTestParser(ELLIPSIS))
    if "training" in module:
        document.namespace |= training() | {name: getattr(mdir_hf, name) for name in ("watch", "LineageCallback")}
    examples = list(document.examples())
    assert examples and "doctest: +SKIP" not in Path(file).read_text(encoding="utf-8")
    for example in examples:
        example.evaluate()
