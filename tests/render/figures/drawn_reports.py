"""Hand-made reports with all parts that have a figure; no comparison runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from mdir_hf import HomologyReport, Verdict
from mdir_hf.report import (
    AncestorLayer,
    Assumption,
    InputOutput,
    LayerPair,
    LayerPattern,
    LayersResult,
    LayerTable,
    Level,
    MatrixArrays,
    MatrixResult,
    ModelSummary,
    ModuleResult,
    ModuleRole,
    NeuronNumbers,
    Outcome,
    ProjectionResult,
    ReportArrays,
    ResidualMap,
    SettledBy,
    Transformation,
)

WIDTH = 24
PERMUTATION = np.random.default_rng(0).permutation(WIDTH)

NO_ARRAYS = ReportArrays()

LONG_NAME = "owner/" + "very-long-model-name-" * 500

HOSTILE_IN_FIGURES = [
    LONG_NAME,
    "$x_1^2$ $\\frac{1}$",  # an even number of dollars: matplotlib would parse formulas, and fail at the second
    "\"><script>x()</script>' onload='x()]]></desc></svg>--><!--&lt;b&gt;",
    "line\nbreak\r\n\ttab\x00\x08\x1b[31mred\x7f\x85\u2028end",
    "שלום/مرحبا\u202egnp.exe\u202c\u200b",
    "模型/大语言模型-🤖🚀-한국어",
]

HOSTILE_NAMES = [
    *HOSTILE_IN_FIGURES,
    "](javascript:alert(1)) ![x](y) `code` | cell | **b**",
    "``` \n# taken over\n- list",
    "e" + "\u0301" * 400,
    "caf\udce9-not-utf8",
    "https://evil.example/a www.evil.example me@evil.example",
    "x; rm -rf / #'\"$(id)`id` back\\slash' and \\x41 \n over two lines",
    "{{ 7*7 }} {% raw %}",
    " ",
    "",
]


def a_model(repo: str = "owner/base", *, commit: str | None = "a1" * 20, hidden_size: int = WIDTH) -> ModelSummary:
    return ModelSummary(repo, "main", commit, "llama", hidden_size, 3, 1200, "GPTQ, 4 bits in groups of 128")


def a_matrix(**fields: Any) -> MatrixResult:
    """Return the matrix result of a permuted copy, with the given fields replaced."""
    standard: dict[str, Any] = {
        "common_tokens": 1000,
        "rows_used": 512,
        "rank": WIDTH,
        "trace": 23.9,
        "normalized_trace": 0.996,
        "matched_channels": WIDTH,
        "transformation": Transformation.PERMUTATION,
        "scale": 3.98,
        "cosine": 0.98,
        "log10_p": -812.4,
        "axes_z": (1.2, -0.7),
        "is_significant": True,
        "widths": (WIDTH, WIDTH),
    }
    body = {**standard, **fields}
    body["transformation"] = Transformation(body["transformation"])
    return MatrixResult(**body)


def a_layer_map(n_reference: int, n_candidate: int, **fields: Any) -> LayersResult:
    """Return a map with matches in order from the first layer, and weak evidence off the diagonal."""
    matrix = np.zeros((n_reference, n_candidate))
    matches = [AncestorLayer(i, i, -40.0 - i) for i in range(min(n_reference, n_candidate))]
    for i, j, log10_p in matches:
        matrix[i, j] = log10_p
    if n_candidate > 1:
        matrix[0, -1] = -1.5
    standard: dict[str, Any] = {
        "method": "sampled rows",
        "role": ModuleRole.V,
        "residual_map": ResidualMap.PERMUTATION,
        "fitted_on": "embeddings",
        "pattern": LayerPattern.IDENTITY if n_reference == n_candidate else LayerPattern.PARTIAL,
        "matches": tuple(matches),
        "reference_layers": tuple(range(n_reference)),
        "candidate_layers": tuple(range(n_candidate)),
        "matrix": tuple(map(tuple, matrix.tolist())),
    }
    body = {**standard, **fields}
    body["pattern"] = LayerPattern(body["pattern"])
    body["matches"] = tuple(AncestorLayer(*match) for match in body["matches"])
    body["matrix"] = tuple(tuple(row) for row in body["matrix"])
    return LayersResult(**body)


def modules_of(pairs: list[tuple[int, int]]) -> tuple[ModuleResult, ...]:
    """Return results of Algorithm 3 for four projections of each pair of layers."""
    p_of = {ModuleRole.Q: -12.0, ModuleRole.K: -20.0, ModuleRole.V: -7000.0, ModuleRole.UP: 0.0}
    return tuple(
        ModuleResult(LayerPair(*pair), role, 12.0, 0.5, log10_p) for pair in pairs for role, log10_p in p_of.items()
    )


def some_neurons(**fields: Any) -> NeuronNumbers:
    """Return neurons of two layers of each model, which match in place; ``fields`` replace the defaults."""
    standard: dict[str, Any] = {
        "step": SettledBy.NEAR,
        "tested": 32,
        "fitted": 64,
        "reference_layers": (0, 2),
        "candidate_layers": (0, 2),
        "own_number": ((32, 1), (0, 31)),
        "certain": ((32, 0), (0, 31)),
        "matches": (LayerPair(0, 0), LayerPair(2, 2)),
        "log10_p": -60.4,
    }
    return NeuronNumbers(**{**standard, **fields})


def some_arrays() -> MatrixArrays:
    rng = np.random.default_rng(1)
    picture = 0.1 * rng.random((WIDTH, WIDTH), dtype=np.float32)
    picture[np.arange(WIDTH), PERMUTATION] = 0.97
    return MatrixArrays(picture, picture[:, PERMUTATION], np.stack([np.arange(WIDTH), PERMUTATION]))


def a_report(**fields: Any) -> HomologyReport:
    """Return a homologous report with every part, with the given fields replaced."""
    standard: dict[str, Any] = {
        "verdict": Verdict.HOMOLOGOUS,
        "reason": None,
        "log10_p": -60.4,
        "alpha": 1e-10,
        "tests": 1,
        "level": Level.LAYERS,
        "settled_by": SettledBy.NEAR,
        "reference": a_model(),
        "candidate": a_model("me/tuned", commit="b2" * 20),
        "embedding": a_matrix(),
        "unembedding": a_matrix(log10_p=-700.0),
        "layers": a_layer_map(3, 3, pattern="reordered"),
        "modules": modules_of([(0, 0), (2, 2)]),
        "projections": a_table(),
        "caveats": ("A caveat.",),
        "io": InputOutput(2_000_000, 0, 16_000_000_000, 12, ("owner/base@a1a1:config.json",)),
        "seconds": {"near": 0.25},
        "seed": 0,
        "version": "0.1.0",
        "assumption": Assumption.NUMBERING,
        "neurons": some_neurons(),
        "arrays": ReportArrays(some_arrays(), some_arrays()),
    }
    return HomologyReport(**{**standard, **fields})


def a_table(**fields: Any) -> LayerTable:
    """Return a table of three layers with one replaced value, a partly kept gate and a key of another layer."""
    changes = {
        (1, ModuleRole.V): {"outcome": Outcome.REPLACED, "share": None, "cosine": 0.01, "deciles": (0.0,) * 9},
        (1, ModuleRole.K): {"outcome": Outcome.FROM_LAYER, "source": 2},
        (2, ModuleRole.GATE): {
            "outcome": Outcome.KEPT_IN_PART,
            "share": 0.5,
            "cosine": 0.5,
            "deciles": tuple(tenth / 10 for tenth in range(1, 10)),
        },
        (2, ModuleRole.DOWN): {
            "outcome": Outcome.NOT_COMPARED,
            "share": None,
            "cosine": None,
            "deciles": (),
            "rows": 0,
        },
    }
    kept: dict[str, Any] = {
        "outcome": Outcome.KEPT, "share": 1.0, "cosine": 0.98, "deciles": (0.98,) * 9, "log10_p": -700.0, "rows": 64
    }  # fmt: skip
    roles = (ModuleRole.Q, ModuleRole.K, ModuleRole.V, ModuleRole.GATE, ModuleRole.DOWN)
    results = tuple(
        ProjectionResult(layer=LayerPair(at, at), role=role, **{**kept, **changes.get((at, role), {})})
        for at in range(3)
        for role in roles
    )
    standard: dict[str, Any] = {
        "residual_map": ResidualMap.IDENTITY, "fitted_on": None, "is_confirmed": True, "tests": 135, "results": results
    }  # fmt: skip
    return LayerTable(**{**standard, **fields})


def stranger() -> HomologyReport:
    """Return a report in which nothing was found."""
    silent = a_matrix(
        trace=5.0,
        normalized_trace=0.2,
        matched_channels=0,
        transformation=Transformation.NONE,
        scale=None,
        cosine=None,
        log10_p=-0.0,
        is_significant=False,
    )
    layers = a_layer_map(3, 3, matches=(), pattern=LayerPattern.NONE, matrix=((-0.0,) * 3,) * 3)
    noise = np.full((WIDTH, WIDTH), 0.15, dtype=np.float32)
    return a_report(
        verdict=Verdict.NO_EVIDENCE,
        settled_by=None,
        assumption=None,
        log10_p=-0.0,
        neurons=some_neurons(
            step=SettledBy.NUMBER, own_number=((1, 0), (0, 2)), certain=((0, 0), (0, 1)), matches=(), log10_p=0.0
        ),
        embedding=silent,
        unembedding=None,
        layers=layers,
        modules=None,
        caveats=(),
        arrays=ReportArrays(MatrixArrays(noise)),
    )
