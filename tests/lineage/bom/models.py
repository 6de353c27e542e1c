"""A family on the loopback Hub: a base, a stranger, and models that declare a base."""

import json

import torch
from safetensors.torch import save_file

from tests.specimens import gaussian, write_model

V, N = 1200, 64


def serve_family(hub, folder):
    """Serve owner/base, owner/stranger and me/*, with true and forged declarations and one of a missing base."""
    base = gaussian(V, N, 0)
    tuned = base + 0.2 * gaussian(V, N, 100)
    declared = {"tuned": "owner/base", "forged": "owner/stranger", "lost": "owner/gone"}
    rows = {"owner/base": base, "owner/stranger": gaussian(V, N, 7), **{f"me/{name}": tuned for name in declared}}
    adapter = folder / "me" / "adapter"
    adapter.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "owner/base"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    factors = {"A": torch.ones(2, V), "B": 0.001 * torch.ones(N, 2)}
    names = {f"base_model.model.model.embed_tokens.lora_embedding_{side}": value for side, value in factors.items()}
    save_file(names, adapter / "adapter_model.safetensors")
    (adapter / "README.md").write_text("---\nbase_model: owner/base\nbase_model_relation: adapter\n---\n# T\n")
    hub.add_repository("me/adapter", adapter)
    for name, values in rows.items():
        write_model(folder / name, values)
        of = declared.get(name.removeprefix("me/"))
        card = f"license: apache-2.0\nbase_model: {of}\nbase_model_relation: finetune" if of else "license: mit"
        (folder / name / "README.md").write_text(f"---\n{card}\n---\n# T\n")
        hub.add_repository(name, folder / name)
