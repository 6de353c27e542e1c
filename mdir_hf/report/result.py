"""The result of a comparison: frozen, serialisable, and able to say itself in words. Knows nothing else.

The JSON is the contract ``mdir-hf/report/1``; the text is what the command line prints. A part that was not run is
None in both, never invented.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from textwrap import fill
from typing import TYPE_CHECKING, Any

from mdir_hf.errors import InputError
from mdir_hf.report.terms import Reason, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "mdir-hf/report/1"


READ_AS = ("subfolder", "variant", "file", "tokenizer", "bases")
"""What of a :class:`ModelSummary` is in JSON only where it was used: digests of older reports hold."""


REASON_TEXT = {
    Reason.TOO_FEW_COMMON_TOKENS: "the two vocabularies share too few tokens for even a plain copy to be significant",
    Reason.FEW_SHARED_AXES: "the models agree on a few channels only, as unrelated models with outlier channels can",
    Reason.NULL_NOT_VALIDATED: "the models agree, but what the p-value of this pair rests on could not be validated",
    Reason.WEIGHTS_UNREADABLE: "the embeddings are silent, and the layers are stored in a form that is not read here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HowRead:
    """How a model was read, as far as a repository and a commit alone do not say; what was not used is None.

    Attributes:
        subfolder: Folder of its repository that holds it, None for the root.
        variant: As asked for, e.g. ``fp16`` or ``Q4_K_M``.
        file: The one weight file that was named, of several.
        tokenizer: Where its vocabulary was read from, if elsewhere: ``owner/name@commit``, or a folder.
        bases: What lies under it if it is an adapter, nearest first: ``owner/name@commit``, or folders.
    """

    subfolder: str | None = None
    variant: str | None = None
    file: str | None = None
    tokenizer: str | None = None
    bases: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Take the list that JSON has for a tuple."""
        if isinstance(self.bases, list):
            object.__setattr__(self, "bases", tuple(self.bases))

    @property
    def read_as(self) -> str:
        """In words for people; empty where its repository says it all."""
        words = {"subfolder": "folder", "tokenizer": "vocabulary of"}
        said = [f"{words.get(name, name)} {value}" for name in READ_AS[:-1] if (value := getattr(self, name))]
        return ", ".join([*said, *(f"on {base}" for base in self.bases or ())])


@dataclass(frozen=True, slots=True)
class ModelSummary(HowRead):
    """One side of a comparison.

    Attributes:
        repo: Repo id, or the local path.
        revision: Revision that was asked for, None for the default branch or a plain folder.
        commit: The commit it resolved to, None for a plain folder.
        architecture: ``model_type`` of the config, or ``unknown``.
        hidden_size: Width n of the residual stream.
        layers: Number of decoder layers, None where the names do not tell.
        vocabulary: Number of rows of the embedding.
        quantization: How its weights are quantised, e.g. ``GPTQ, 4 bits in groups of 128``; None where they are not.
    """

    repo: str
    revision: str | None
    commit: str | None
    architecture: str
    hidden_size: int | None
    layers: int | None
    vocabulary: int | None
    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceboResult:
    """The statistic where there is nothing to find; it should lie below its threshold.

    Attributes:
        trace: c of the placebo.
        threshold: The c that would be significant at 0.1 %.
        log10_p: At most 0.
        channels: Number of channels it was computed on.
    """

    trace: float
    threshold: float
    log10_p: float
    channels: int


@dataclass(frozen=True, slots=True)
class PlaceboReport:
    """Calibration of the embedding test (method: calibration).

    Attributes:
        re_paired: Tokens of one model paired with other tokens of the other.
        rotated: One model turned by a random rotation.
        privileged_basis_z: How far each model's axes stand out among all directions, reference and candidate.
    """

    re_paired: PlaceboResult
    rotated: PlaceboResult
    privileged_basis_z: tuple[float, float]


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """Algorithm 1 on one pair of matrices, the embeddings or the unembeddings.

    Attributes:
        common_tokens: Tokens that both vocabularies hold.
        rows_used: Tokens used by the look that is reported.
        rank: Rank of the polar factor.
        trace: c, None where no matching could have been significant and none was solved.
        threshold: The c that would be significant at 0.1 %.
        normalized_trace: c over the narrower width.
        coverage: Share of channels matched each by itself.
        matched_channels: Their number: entries of the polar factor significant at 1 % over all entries.
        stray_channels: Channels that resemble another one than their own, too; next to none in relatives.
        transformation: identity, permutation, signed_permutation, rotation or none.
        scale: s of E' ~ s E P, None where nothing was found.
        view: centred or whitened.
        log10_p: Corrected for tests and looks; at most 0.
        log10_p_trimmed: The same without the best n/16, n/4 and n/2 of the channels.
        placebo: Calibration on the same rows.
        looks: Every look: rows used and its corrected log10 p.
        log10_p_signs: The same with one vote for each channel, its sign, where they were compared in their own order;
            None else. At most 0.
    """

    common_tokens: int
    rows_used: int
    rank: int
    trace: float | None
    threshold: float | None
    normalized_trace: float | None
    coverage: float | None
    matched_channels: int | None
    stray_channels: int | None
    transformation: str
    scale: float | None
    view: str
    log10_p: float
    log10_p_trimmed: Mapping[str, float]
    placebo: PlaceboReport | None
    looks: tuple[tuple[int, float], ...]
    log10_p_signs: float | None = None


@dataclass(frozen=True, slots=True)
class InputOutput:
    """What was read.

    Attributes:
        bytes_read: Bytes fetched from the network or read from local files, tokenizers and configs included.
        bytes_from_cache: Bytes served by our own cache of ranges.
        bytes_of_weights: Stored size of the two checkpoints.
        requests: Number of HTTP requests; none for local files.
        files: Files touched, as ``repo@commit:path``.
    """

    bytes_read: int
    bytes_from_cache: int
    bytes_of_weights: int
    requests: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HomologyReport:
    """The outcome of ``checker.compare``.

    Attributes:
        verdict: What the evidence supports at the level fixed in advance.
        reason: Why it is inconclusive, else None.
        log10_p: Headline, corrected for ``tests`` tests and for every look; at most 0.
        alpha: The level.
        tests: How many tests the headline was corrected for.
        level: What was asked for: auto, screen, embedding or body.
        settled_by: The step that decided: identical_files, screen, embedding, unembedding, body, or None.
        reference: One model.
        candidate: The other.
        embedding: Algorithm 1 on the embeddings, None if not run.
        unembedding: The same on untied unembeddings, None if not run.
        layers: Algorithm 2, None if not run.
        modules: Algorithm 3, None if not run.
        caveats: Sentences that apply to this result.
        io: What was read.
        seconds: Wall-clock seconds of each step.
        seed: Seed of every random choice.
        version: Version of this package.
        arrays: What is too large for JSON, not serialised: ``embedding`` (the polar factor, reduced for pictures) and
            ``embedding_channels`` (``(2, m)``, matched channels of the reference and of the candidate),
            ``embedding_matched`` where the match is significant and moves channels (the polar factor with matched
            channels on the diagonal, reduced likewise), and the same for ``unembedding``.
    """

    verdict: Verdict
    reason: Reason | None
    log10_p: float
    alpha: float
    tests: int
    level: str
    settled_by: str | None
    reference: ModelSummary
    candidate: ModelSummary
    embedding: MatrixReport | None
    unembedding: MatrixReport | None
    layers: Mapping[str, Any] | None
    modules: tuple[Mapping[str, Any], ...] | None
    caveats: tuple[str, ...]
    io: InputOutput
    seconds: Mapping[str, float]
    seed: int
    version: str
    arrays: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain containers, in the order of the schema."""
        body = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "arrays"}
        for name, value in body.items():
            if hasattr(value, "__dataclass_fields__"):
                body[name] = asdict(value)
        for side in ("reference", "candidate"):
            body[side] = {name: value for name, value in body[side].items() if value is not None or name not in READ_AS}
        body["verdict"] = self.verdict.value
        body["reason"] = None if self.reason is None else self.reason.value
        return {"schema": SCHEMA, **body}

    def to_json(self, *, indent: int | None = 2) -> str:
        """The report as one JSON object, the contract ``mdir-hf/report/1``."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> HomologyReport:
        """Read a report back.

        Raises:
            InputError: If the text is not a report of this schema.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise InputError(f"this is not a report of mdir-hf: not JSON ({exc})") from exc
        schema = body.pop("schema", None) if isinstance(body, dict) else None
        if schema != SCHEMA:
            raise InputError(
                f"expected a report of schema {SCHEMA}, got {schema!r}; read it with a version that knows it"
            )
        try:
            body["verdict"] = Verdict(body["verdict"])
            body["reason"] = None if body["reason"] is None else Reason(body["reason"])
            body["reference"] = ModelSummary(**body["reference"])
            body["candidate"] = ModelSummary(**body["candidate"])
            body["embedding"] = _matrix_report(body["embedding"])
            body["unembedding"] = _matrix_report(body["unembedding"])
            body["modules"] = None if body["modules"] is None else tuple(body["modules"])
            body["caveats"] = tuple(body["caveats"])
            body["io"] = InputOutput(**{**body["io"], "files": tuple(body["io"]["files"])})
            return cls(**body)
        except (TypeError, ValueError, KeyError) as exc:
            raise InputError(f"this report of schema {SCHEMA} lacks or adds fields: {exc}") from exc

    @property
    def icon(self) -> str:
        """One character for the verdict: a full, an empty or a half circle. Put words beside it."""
        return ICON[self.verdict]

    @property
    def headline(self) -> str:
        """The verdict as a sentence without its full stop, with the reason where it is inconclusive."""
        return SENTENCE[self.verdict] + (f": {REASON_TEXT[self.reason]}" if self.reason is not None else "")

    @property
    def means(self) -> str:
        """What the verdict means, for people."""
        return MEANS[self.verdict]

    @property
    def does_not_mean(self) -> tuple[str, ...]:
        """What the verdict does not mean: sentences to stand wherever the verdict stands."""
        return DOES_NOT_MEAN[self.verdict]

    def figures(self, *, dark: bool = False) -> Mapping[str, Figure]:
        """Draw the matplotlib figures that this report has the data for, by name (needs ``mdir-hf[plot]``).

        Args:
            dark: Light ink on dark paper.
        """
        from mdir_hf.figures import draw_figures

        return draw_figures(self, dark=dark)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _matrix_report(body: Any) -> MatrixReport | None:  # noqa: ANN401 - parsed JSON
    if body is None:
        return None
    placebo = body["placebo"]
    if placebo is not None:
        placebo = PlaceboReport(
            PlaceboResult(**placebo["re_paired"]),
            PlaceboResult(**placebo["rotated"]),
            tuple(placebo["privileged_basis_z"]),
        )
    looks = tuple((int(n), float(p)) for n, p in body["looks"])
    return MatrixReport(**{**body, "placebo": placebo, "looks": looks})


LINE_WIDTH = 100

HEADLINE = {
    Verdict.HOMOLOGOUS: "HOMOLOGOUS: the two models share weight ancestry",
    Verdict.NO_EVIDENCE: "NO EVIDENCE of shared weight ancestry was found",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
}

MEANING = (
    "p bounds the chance of such agreement between independently trained models. It is not a probability of "
    "guilt, has no direction, and a shared random seed counts as shared ancestry."
)

ICON = {Verdict.HOMOLOGOUS: "●", Verdict.NO_EVIDENCE: "○", Verdict.INCONCLUSIVE: "◐"}
"""Full, empty and half: told apart without colour, and none of them a tick or a cross."""

SENTENCE = {
    Verdict.HOMOLOGOUS: "The two models share weight ancestry",
    Verdict.NO_EVIDENCE: "No evidence of shared weight ancestry was found",
    Verdict.INCONCLUSIVE: "The comparison is inconclusive",
}

MEANS = {
    Verdict.HOMOLOGOUS: (
        "Models trained independently agree this well with a probability of at most p, and p is below the level alpha "
        "that was fixed before looking. The weights of the two have a common origin: one was made from the other, or "
        "both from a third, or both began from the same random initialisation."
    ),
    Verdict.NO_EVIDENCE: (
        "Where this comparison looked, the two models agree no better than models trained independently may."
    ),
    Verdict.INCONCLUSIVE: "For this pair the question could not be answered either way, for the reason given.",
}

DOES_NOT_MEAN = {
    Verdict.HOMOLOGOUS: (
        "It has no direction: the weights do not say which model came first.",
        "It is no accusation: whether the origin was declared or allowed is not looked at.",
        "p is not the probability of guilt, and not a measure of how much is shared: log10 p of -300 and of -7000 are "
        "both overwhelming.",
        "The common origin can be as little as a shared random seed.",
    ),
    Verdict.NO_EVIDENCE: (
        "Not found is not unrelated: a model trained until nothing is left, or hidden in a way that is not looked "
        "for, is not found.",
        "It says nothing about distillation, shared data or a shared tokenizer, which are not weight ancestry.",
    ),
    Verdict.INCONCLUSIVE: (
        "It speaks neither for nor against shared ancestry.",
        "It is not a weak form of another verdict: what would settle it was not there to be read.",
    ),
}


def _lines(report: HomologyReport) -> list[str]:
    headline = HEADLINE[report.verdict]
    if report.reason is not None:
        headline += f": {REASON_TEXT[report.reason]}"
    lines = [headline, ""]

    def row(name: str, text: str) -> None:
        lines.append(f"  {name:<12} {text}")

    row("log10 p", f"{report.log10_p:.1f}  (alpha {report.alpha:g}, corrected for {report.tests} tests)")
    row("reference", _model_line(report.reference))
    row("candidate", _model_line(report.candidate))
    if report.settled_by is not None:
        row("settled by", report.settled_by.replace("_", " "))
    for name, matrix in (("embedding", report.embedding), ("unembedding", report.unembedding)):
        if matrix is not None:
            lines += _matrix_lines(name, matrix)
    if report.layers is not None:
        lines += _layer_lines(report.layers, report.modules or ())
    share = report.io.bytes_read / report.io.bytes_of_weights if report.io.bytes_of_weights else 0.0
    cached = f" and {n_bytes_text(report.io.bytes_from_cache)} from the cache" if report.io.bytes_from_cache else ""
    row(
        "read",
        f"{n_bytes_text(report.io.bytes_read)}{cached}, against {n_bytes_text(report.io.bytes_of_weights)} of weights"
        f" ({share:.1%}), in {report.io.requests} requests and {sum(report.seconds.values()):.1f} s",
    )
    lines.append("")
    for bullet, sentence in (("", MEANING), *(("- ", caveat) for caveat in report.caveats)):
        lines.append(
            fill(
                sentence,
                LINE_WIDTH,
                initial_indent=f"  {bullet}",
                subsequent_indent="  " + " " * len(bullet),
                break_long_words=False,
                break_on_hyphens=False,  # names of models stay whole: they are copied
            )
        )
    return lines


def _model_line(model: ModelSummary) -> str:
    name = model.repo + (f"@{model.revision}" if model.revision else "")
    commit = f" [{model.commit[:8]}]" if model.commit else ""
    facts = [model.architecture]
    facts += [f"width {model.hidden_size}"] if model.hidden_size else []
    facts += [f"{model.layers} layers"] if model.layers else []
    facts += [f"{model.vocabulary} embedding rows"] if model.vocabulary else []
    facts += [model.quantization] if model.quantization else []
    facts += [model.read_as] if model.read_as else []
    return f"{name}{commit}  ({', '.join(facts)})"


def _matrix_lines(name: str, matrix: MatrixReport) -> list[str]:
    found = "nothing" if matrix.transformation == "none" else matrix.transformation.replace("_", " ")
    lines = [f"  {name:<12} {matrix.rows_used} of {matrix.common_tokens} common tokens used; found: {found}"]
    if matrix.scale is not None:
        lines[0] += f", scale {matrix.scale:.3g}"
    if matrix.trace is not None and matrix.normalized_trace is not None:
        lines.append(
            f"  {'':<12} trace {matrix.trace:.1f} (normalized {matrix.normalized_trace:.3f}, rank {matrix.rank}),"
            f" {matrix.matched_channels} channels each matched by itself"
        )
    trimmed = ", ".join(f"{p:.1f} without the best {k}" for k, p in matrix.log10_p_trimmed.items())
    if matrix.log10_p_signs is not None:
        trimmed += f", {matrix.log10_p_signs:.1f} by the signs alone"
    lines.append(f"  {'':<12} log10 p {matrix.log10_p:.1f}; {trimmed}")
    if matrix.placebo is not None:
        placebo = matrix.placebo.re_paired
        state = "silent" if placebo.log10_p > -3.0 else "NOT silent"
        lines.append(
            f"  {'':<12} placebo (re-paired tokens) {state}: trace {placebo.trace:.1f}, significant from"
            f" {placebo.threshold:.1f}"
        )
    return lines


def _layer_lines(layers: Mapping[str, Any], modules: tuple[Mapping[str, Any], ...]) -> list[str]:
    matches = layers["matches"]
    outer = {"identity": "the same residual basis", "rotation": "a fitted rotation"}.get(
        layers["outer"], f"the channels matched on the {layers.get('fitted_on') or 'embeddings'}"
    )
    n_layers = len(layers["matrix"][0]) if layers["matrix"] else 0
    lines = [
        f"  {'layers':<12} {len(matches)} of {n_layers} have an ancestor ({layers['role']}, through {outer}); "
        f"pattern: {layers['pattern']}; log10 p {layers['log10_p']:.1f}"
    ]
    if matches:
        pairs = ", ".join(f"{reference}>{candidate}" for reference, candidate, _ in matches)
        lines.append(
            fill(f"reference>candidate: {pairs}", LINE_WIDTH, initial_indent=" " * 15, subsequent_indent=" " * 15)
        )
    best: dict[tuple[str, str], float] = {}
    mixtures = [module["found"] for module in modules if module["role"] == "experts"]
    for module in modules:
        if module["role"] == "experts":
            continue
        test = (module["role"], module["test"])
        best[test] = min(best.get(test, 0.0), module["log10_p"])
    if best:
        tests = ", ".join(f"{role} {test.replace('_', ' ')} {p:.0f}" for (role, test), p in best.items() if p < 0.0)
        lines.append(fill(f"modules: {tests}", LINE_WIDTH, initial_indent=f"  {'':<13}", subsequent_indent=" " * 15))
    if mixtures:
        lines.append(f"  {'':<13}experts: {experts_text(mixtures)}")
    return lines


def experts_text(mixtures: list[Mapping[str, Any]]) -> str:
    """How many experts come from where, over all layers that were looked at."""
    traced = [(name, origin) for found in mixtures for name, origin, _ in found["experts"]]
    n_all = len(traced) + sum(len(found["without_origin"]) for found in mixtures)
    counts = {
        "from a dense MLP": sum(origin is None for _, origin in traced),
        "from the expert in the same place": sum(origin is not None and name == origin for name, origin in traced),
        "from another expert": sum(origin is not None and name != origin for name, origin in traced),
    }
    parts = ", ".join(f"{n} {where}" for where, n in counts.items() if n)
    return f"{len(traced)} of {n_all} have an origin" + (f": {parts}" if parts else "")


def n_bytes_text(n_bytes: float) -> str:
    """A size for people: 512 B, 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n_bytes) < 1000.0 or unit == "GB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000.0
    raise AssertionError("unreachable")
