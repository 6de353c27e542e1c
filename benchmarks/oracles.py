"""Write the libraries that each reader is checked against into ``results/pages/coverage.md``; see ``make oracles``.

The numbers of cases and disagreements come from ``benchmarks/results/oracles.json``, which ``tests/oracles`` writes.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

PAGE = Path(__file__).parent / "results" / "pages" / "coverage.md"
COUNTS = Path(__file__).parent / "results" / "oracles.json"
HEADING = "## Files and vocabularies"

ROWS: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    (
        "safetensors",
        "every dtype, shapes with up to four axes; 30,000 changed headers",
        "safetensors",
        ("safetensors",),
        "test_safetensors.py",
    ),
    (
        "`.bin`, `.pth`, `.pt`",
        "views: transposed, cut, stepped, negated; pickle protocols 2 to 5; 6,000 changed pickles",
        "torch.save",
        ("torch",),
        "test_torch.py",
    ),
    (
        "GGUF",
        "every type that the package dequantises, four alignments; 3,000 changed headers",
        "gguf",
        ("gguf",),
        "test_gguf.py",
    ),
    (
        "ONNX",
        "both of torch's exporters; ONNX Runtime's static, dynamic, block and bitsandbytes quantisers; typed fields",
        "onnx, onnxruntime and torch.onnx",
        ("onnx", "onnxruntime", "torch"),
        "test_onnx.py",
    ),
    ("NF4, FP4, INT8 of bitsandbytes", "random sizes", "bitsandbytes", ("bitsandbytes",), "test_quantised.py"),
    (
        "compressed-tensors",
        "INT3 to INT8, FP8, MXFP4, MXFP6, MXFP8, NVFP4",
        "compressed-tensors",
        ("compressed-tensors",),
        "test_quantised.py",
    ),
    (
        "GPTQ, AWQ, MLX, ModelOpt, FP8 blocks, BitNet, Metal",
        "written by the algorithms in the libraries' code",
        "other quantisers, as their code writes",
        (),
        "test_quantised.py",
    ),
    (
        "GPTQ",
        "2, 3, 4 and 8 bits, with and without activation order; if the package is installed",
        "gptqmodel",
        (),
        "test_gptqmodel.py",
    ),
    ("adapters", "LoRA, DoRA, rank-stabilised, patterns, tokens, saved modules", "peft", ("peft",), "test_peft.py"),
    (
        "`tokenizer.json`",
        "byte-level, WordPiece, Metaspace, Unigram, end-of-word marks, byte fallback; 1,500 changed files",
        "tokenizers",
        ("tokenizers",),
        "test_tokenizers.py",
    ),
    (
        "`tokenizer.model`",
        "BPE, Unigram, characters, words, byte fallback",
        "sentencepiece",
        ("sentencepiece",),
        "test_tokenizers.py",
    ),
    (
        "addresses on the Hub",
        "`hf://` and pages, revisions with a slash, folders and files",
        "huggingface_hub",
        ("huggingface_hub",),
        "test_hub_addresses.py",
    ),
    ("`*.tiktoken`", "random bytes in any order of ranks", "tiktoken", ("tiktoken",), "test_tokenizers.py"),
)
"""Format, variations of the cases, key of their counts, packages, and test."""

REASONS = """\
Equal means equal to the bit, except for three kinds of sums that are rounded: INT8 of bitsandbytes, merged adapters
(products of float32), and values that a library itself rounds to 16 bits.

Some differences are intended. Views that repeat elements of their storage are refused. Complex numbers and integers are
read as stored and never as weights. torch.load refuses files if only other objects are broken, such as the state of an
optimiser; we read the weights and get the same numbers. tokenizers refuses files with a broken merge or pipeline; we
read only the row of each token. """


def section() -> str:
    """Format the section in Markdown, with its heading."""
    counts: dict[str, list[int]] = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.is_file() else {}
    lines = [
        HEADING,
        "",
        "`make oracles` wrote this section. In each case, the library that defines the format writes a random valid "
        "file, and our reader must return the values that the library reads back. Our reader must also refuse the "
        "files that the library refuses.",
        "",
        "| read | cases vary | checked against | cases | disagreements | test in `tests/oracles/` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for read, varies, key, packages, test in ROWS:
        versions = ", ".join(f"{name} {metadata.version(name).partition('+')[0]}" for name in packages) or key
        n_cases, n_different = counts.get(key, [0, 0])
        numbers = f"{n_cases:,} | {n_different:,}" if key in counts else "not installed here | "
        lines.append(f"| {read} | {varies} | {versions} | {numbers} | `{test}` |")
    return "\n".join([*lines, "", REASONS])


def write_section() -> None:
    """Replace the section at the end of the page."""
    page = PAGE.read_text(encoding="utf-8").partition(f"\n{HEADING}")[0]
    PAGE.write_text(f"{page}\n{section()}", encoding="utf-8")
