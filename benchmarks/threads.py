"""What threads cost and gain: small body comparisons with the limiter of ``mdir_hf.processor`` and without it.

Pairs of Llamas of 4M parameters are compared at level ``body``, in a fresh process each time: with nothing else
on the machine, beside a busy loop on every core, and under a processor quota of a cgroup (which takes root on Linux).
OMP_NUM_THREADS of the caller is dropped. ``--sizes`` measures the size from which matrices earn all cores.

    python -m benchmarks.threads [--pairs 3] [--limit 300] [--conditions idle loaded quota] [--sizes]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from mdir_hf import processor

QUOTA_CORES = 1
GROUP = "mdir-hf-benchmark"
PROGRAMS = ("unlimited", "limited")
CONDITIONS = ("idle", "loaded", "quota")
SIZES = (64, 128, 256, 512, 768, 1024, 1536, 2048)


def write_models(folder: Path, n_pairs: int) -> None:
    """Write a base and its drifted copies, whose embeddings are new so that the layers have to decide."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.specimens import tokenizer_json, tokens

    config = LlamaConfig(
        vocab_size=1024, hidden_size=192, intermediate_size=512, num_hidden_layers=8, num_attention_heads=6,
        num_key_value_heads=3, head_dim=32, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    for k in range(n_pairs + 1):
        if k:
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    noise = torch.randn_like(weight) * weight.std() if weight.ndim == 2 else 0.0
                    weight.copy_(noise if "embed" in name or "lm_head" in name else weight + 0.1 * noise)
        model.save_pretrained(folder / str(k))
        (folder / str(k) / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(1024))))


def compare(folder: Path, n_pairs: int, *, is_limited: bool) -> dict[str, float]:
    """Compare the pairs in this process; returns the seconds by the clock and of the processor."""
    if not is_limited:
        processor.one_pool = nullcontext  # before the package imports it
    from mdir_hf import HomologyChecker

    wall, cpu = time.perf_counter(), time.process_time()
    log10_p = 0.0
    for k in range(1, n_pairs + 1):
        with processor.one_pool():
            checker = HomologyChecker.from_pretrained(folder / "0")
            log10_p += checker.compare(folder / str(k), level="layers", progress=False).log10_p
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "log10_p": log10_p}


def in_a_process(folder: Path, n_pairs: int, program: str, group: Path | None, limit: float) -> dict[str, float]:
    """Run :func:`compare` in a fresh process, in a cgroup if given; past the limit it ends, without ``wall_s``."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-m", "benchmarks.threads", "--program", program]
    command += ["--folder", str(folder), "--pairs", str(n_pairs)]

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text("0")  # whoever writes it

    before = cpu_of_children()
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, check=True, timeout=limit, preexec_fn=join
        )
    except subprocess.TimeoutExpired:
        return {"cpu_s": cpu_of_children() - before}
    result: dict[str, float] = json.loads(done.stdout)
    return result


def cpu_of_children() -> float:
    """Return the seconds of processor that programs started here have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def busy_loops() -> Iterator[None]:
    """Keep every usable core busy with another program."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processor.usable_cores())]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def quota() -> Iterator[Path]:
    """Make a cgroup with a processor quota.

    Raises:
        OSError: If none can be made here.
    """
    at = next((Path(p) for p in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct") if Path(p).is_dir()), None)
    group = (at or Path("/sys/fs/cgroup")) / GROUP
    group.mkdir()
    try:
        if at is None:
            (group / "cpu.max").write_text(f"{QUOTA_CORES * 100_000} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_CORES * 100_000))
        yield group
    finally:
        group.rmdir()


def ratios(folder: Path, n_pairs: int, condition: str, limit: float) -> None:
    """Print one row: without the limiter, with it, and what it saves."""
    around = {"idle": nullcontext(), "loaded": busy_loops(), "quota": quota()}[condition]
    try:
        with around as group:
            place = group if condition == "quota" else None
            before, after = (in_a_process(folder, n_pairs, program, place, limit) for program in PROGRAMS)
    except OSError as exc:
        print(f"{condition:8} not measured: {exc}")
        return
    if not ("wall_s" in before and "wall_s" in after):
        print(f"{condition:8} without {_seconds(before, limit)}; with {_seconds(after, limit)}")
        return
    assert abs(before["log10_p"] - after["log10_p"]) < 1e-6 * abs(after["log10_p"])
    print(
        f"{condition:8} without {_seconds(before, limit)}; with {_seconds(after, limit)}: "
        f"{before['wall_s'] / after['wall_s']:.1f}x sooner, {before['cpu_s'] / after['cpu_s']:.1f}x less processor"
    )


def _seconds(result: dict[str, float], limit: float) -> str:
    wall = f"{result['wall_s']:.1f} s" if "wall_s" in result else f"more than {limit:.0f} s"
    return f"{wall} by the clock, {result['cpu_s']:.1f} s of processor"


def sizes() -> None:
    """Print how much sooner all cores finish than one, by size of the matrices, idle and loaded."""
    works: dict[str, tuple[float, Callable[[torch.Tensor], object]]] = {
        "product": (2.0, lambda x: x @ x),
        "SVD": (20.0, lambda x: torch.linalg.svd(x)),
        "eigh": (9.0, lambda x: torch.linalg.eigh(x)),
    }
    n_cores = processor.usable_cores()
    print(f"one core over {n_cores}, float64, best of 5: above 1 all cores are sooner")
    for name, (operations, work) in works.items():
        for n in SIZES:
            x = torch.randn(n, n, dtype=torch.float64)
            x = x + x.T
            found = []
            for around in (nullcontext, busy_loops):
                with around():
                    found += [_best(lambda work=work, x=x: work(x), threads) for threads in (1, n_cores)]
            one, all_, one_loaded, all_loaded = found
            print(
                f"{name:8} n = {n:5d}, {operations * n**3 / 1e9:7.2f} Gflop, {one * 1e3:8.1f} ms: "
                f"idle {one / all_:5.2f}, loaded {one_loaded / all_loaded:5.2f}",
                flush=True,
            )


def _best(call: Callable[[], object], threads: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    return min(times)


def main() -> None:
    """Print the ratios, or run one of the programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a program is given up")
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=CONDITIONS)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        print(json.dumps(compare(args.folder, args.pairs, is_limited=args.program == "limited")))
        return
    if args.sizes:
        sizes()
        return
    load = f", load {os.getloadavg()[0]:.1f} before it began" if hasattr(os, "getloadavg") else ""
    print(f"{args.pairs} body comparisons, {processor.usable_cores()} usable cores{load}")
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), args.pairs)
        for condition in args.conditions:
            ratios(Path(folder), args.pairs, condition, args.limit)


if __name__ == "__main__":
    main()
