"""Run one of two ranks: both shard two models, compare them, and write a report to a file named after the rank.

python -m tests.model.memory.rank FOLDER REFERENCE CANDIDATE
"""

import os
import sys
from pathlib import Path

import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard

from mdir_hf import HomologyChecker


def run(rank, place, folders):
    dist.init_process_group("gloo", store=dist.FileStore(str(place / "store"), 2), rank=rank, world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,))
        models = [transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
        for model in models:
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        tokenizers = [transformers.AutoTokenizer.from_pretrained(folder) for folder in folders]
        checker = HomologyChecker.from_pretrained(models[0], tokenizer=tokenizers[0])
        report = checker.compare(models[1], tokenizer=tokenizers[1], level="paper", progress=False)
        (place / f"{rank}.json").write_text(report.to_json())
    finally:
        dist.destroy_process_group()


def main():
    place, *folders = sys.argv[1:]
    # Fork after the imports, which take longer than the rest.
    other = os.fork()
    run(0 if other else 1, Path(place), folders)
    if other and os.waitpid(other, 0)[1] != 0:
        raise SystemExit("rank 1 failed")


if __name__ == "__main__":
    main()
