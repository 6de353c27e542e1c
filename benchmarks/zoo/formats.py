"""Write a model in every quantised format that this package can read and this environment can write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

GGUF_KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K")


def formats() -> dict[str, str]:
    """Names of formats, each with its description."""
    from tests.model.files.quantization.writers import SCHEMES

    return {f"gguf-{kind.lower()}": f"GGUF, {kind}" for kind in GGUF_KINDS} | {
        name: scheme.says for name, scheme in SCHEMES.items()
    }


def store(base: Path, kind: str, folder: Path, *, beside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Write a base in another format and return how many of its matrices fit the format.

    Args:
        base: A folder with ``model.safetensors``, ``config.json`` and ``tokenizer.json``.
        kind: A key of :func:`formats`.
        folder: Output folder.
        beside: Names of files of the base that are not copied.
    """
    from safetensors.torch import load_file, save_file

    state = load_file(base / "model.safetensors")
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if kind.startswith("gguf-"):
        from tests.gguf_converter import to_gguf, vocabulary_keys

        name = kind.removeprefix("gguf-").upper()
        tokenizer = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
        keys = vocabulary_keys(tokenizer, config["vocab_size"])
        folder.mkdir(parents=True)
        (folder / f"model-{name}.gguf").write_bytes(to_gguf(config["model_type"], config, state, kind=name, **keys))
        return {"n_quantised": sum(tensor.ndim == 2 and tensor.shape[1] % 32 == 0 for tensor in state.values())}
    from tests.model.files.quantization.writers import SCHEMES

    scheme = SCHEMES[kind]
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns(*beside))
    stored, n_quantised = {}, 0
    for name, tensor in state.items():
        fits = tensor.ndim == 2 and all(s % d == 0 for s, d in zip(tensor.shape, scheme.divides, strict=True))
        if ".layers." in name and fits:
            stored |= scheme.write(tensor.float(), name.removesuffix(".weight")).tensors
            n_quantised += 1
        else:
            stored[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | scheme.model_config), encoding="utf-8")
    return {"n_quantised": n_quantised}
