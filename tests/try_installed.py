"""Try an installation: ``python tests/try_installed.py`` with the Python that the package is installed in.

Runs ``--help``, a comparison and the Space with the installed program, from an empty folder. Exits with 1 at the first
failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

import torch
from safetensors.torch import save_file

WIDTH, N_WORDS, N_NEURONS = 64, 400, 128


def write_small_model(folder: Path, *, noise: float) -> None:
    """Write a Llama of one layer: the weights of seed 0, plus ``noise`` times normal values."""
    weights = {"model.embed_tokens.weight": (N_WORDS, WIDTH), "model.layers.0.mlp.down_proj.weight": (WIDTH, N_NEURONS)}
    weights |= {f"model.layers.0.mlp.{name}_proj.weight": (N_NEURONS, WIDTH) for name in ("gate", "up")}
    random = torch.Generator().manual_seed(0)
    first = {name: torch.randn(shape, generator=random) for name, shape in weights.items()}
    folder.mkdir()
    save_file(
        {name: weight + noise * torch.randn(weight.shape, generator=random) for name, weight in first.items()},
        folder / "model.safetensors",
    )
    config = {"model_type": "llama", "hidden_size": WIDTH, "vocab_size": N_WORDS, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))


def try_commands(program: Path, folder: Path) -> None:
    """Run the program in an empty folder.

    Raises:
        SystemExit: If a command fails or gives another answer.
    """

    def output_of(*words: str) -> str:
        return subprocess.run([program, *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout

    expect("survey" in output_of("--help"), "--help lists the commands")
    write_small_model(folder / "base", noise=0)
    write_small_model(folder / "tuned", noise=0.05)
    report = json.loads(output_of("compare", "base", "tuned", "--json", "--quiet"))
    expect(report["verdict"] == "homologous", "a fine-tuned copy is related to its base")

    space = subprocess.Popen([program, "space", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        address = space.stdout.readline().split()[1]
        with urlopen(address, timeout=60) as page:
            expect(b"gradio" in page.read(), "the Space serves its page")
    finally:
        space.terminate()
        space.communicate()


def expect(is_right: bool, what: str) -> None:
    """Print the name of a check; exit with 1 if it failed."""
    sys.stdout.write(f"{'ok' if is_right else 'FAILED'}: {what}\n")
    if not is_right:
        raise SystemExit(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        try_commands(Path(sys.executable).with_name("mdir-hf"), Path(empty))
