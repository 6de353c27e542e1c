"""One of two ranks: shards two models over both, compares them, and prints the report.

python -m tests.model.memory.rank RANK STORE REFERENCE CANDIDATE
"""

import sys

import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard

from mdir_hf import HomologyChecker


def main():
    rank, store, *folders = sys.argv[1:]
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=int(rank), world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,))
        models = [transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
        for model in models:
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        tokenizers = [transformers.AutoTokenizer.from_pretrained(folder) for folder in folders]
        checker = HomologyChecker.from_pretrained(models[0], tokenizer=tokenizers[0])
        report = checker.compare(models[1], tokenizer=tokenizers[1], level="full", progress=False)
        sys.stdout.write(report.to_json())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
