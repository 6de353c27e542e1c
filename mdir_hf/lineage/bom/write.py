"""Write a CycloneDX bill of materials: a model, its bases, and the evidence for each."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from mdir_hf._version import __version__
from mdir_hf.errors import InputError
from mdir_hf.lineage.bom import require_bom
from mdir_hf.lineage.cards.verify_lineage import LineageCheck
from mdir_hf.lineage.family import Family
from mdir_hf.names import is_repo_id, visible_text
from mdir_hf.render.layer_words import layers_text
from mdir_hf.report import HomologyReport, ModelFacts, NeuronNumbers, PartCoverage, Term, Verdict
from mdir_hf.report.words import probability_text

if TYPE_CHECKING:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, Pedigree


PedigreeList = Literal["ancestors", "variants"]


class Standing(Term):
    """Result of comparing a declared base with measurements."""

    CONFIRMED = "confirmed", "declared and confirmed"
    BY_CONSTRUCTION = "by_construction", "declared, and named by the adapter's config"
    FOUND = "found", "found, and not declared"
    NOT_CONFIRMED = "not_confirmed", "declared and not confirmed"
    NOT_MEASURED = "not_measured", "declared and not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRecord:
    """One base of a model.

    Attributes:
        name: Repo id or folder.
        declared_in: File that declares the base, or None.
        report: Comparison with the base as the reference, or None.
        why_not: Why there is no comparison, or None.
        is_under_adapter: Whether the model is an adapter whose config names this base.
    """

    name: str
    declared_in: str | None = None
    relation: str | None = None
    report: HomologyReport | None = None
    why_not: str | None = None
    found_by: str | None = None
    commit: str | None = None
    neurons: NeuronNumbers | None = None
    is_under_adapter: bool = False

    @property
    def is_on_hub(self) -> bool:
        """Whether the name is a repo id on the Hub."""
        return is_repo_id(self.name) and (self.commit is not None or self.declared_in is not None)

    @property
    def shown(self) -> str:
        """The name, or only its last part for a folder."""
        return self.name if self.is_on_hub else PurePath(self.name).name or "model"

    @property
    def is_related(self) -> bool:
        """Whether the language models share weight ancestry."""
        return self.report is not None and self.report.verdict is Verdict.HOMOLOGOUS

    @property
    def standing(self) -> Standing | None:
        """Result of comparing the declaration with the measurement; None if the base is neither declared nor found."""
        if self.is_related:
            return Standing.FOUND if self.declared_in is None else Standing.CONFIRMED
        if self.declared_in is None:
            return None
        if self.is_under_adapter and self.report is None:
            return Standing.BY_CONSTRUCTION
        return Standing.NOT_MEASURED if self.report is None else Standing.NOT_CONFIRMED

    @property
    def place(self) -> PedigreeList | None:
        """The base's place in a pedigree, or None.

        A base is an ancestor if its declaration is confirmed and it is not itself an adapter on the model, or if the
        model is an adapter on it. Other relatives are variants, which have no direction in CycloneDX.
        """
        if self.standing is Standing.BY_CONSTRUCTION:
            return "ancestors"
        if not self.is_related:
            return None
        base, model = (None, None) if self.report is None else (self.report.reference, self.report.candidate)
        if base is not None and model is not None and model.pinned in (base.bases or ()):
            return "variants"
        is_under_adapter = base is not None and model is not None and base.pinned in (model.bases or ())
        return "ancestors" if self.declared_in is not None or is_under_adapter else "variants"

    @property
    def matched_parts(self) -> tuple[tuple[str, str], ...]:
        """Parts that match the base, and their matching layers."""
        parts: list[tuple[str, str]] = []
        if self.is_related:
            parts.append(("language model", "" if self.neurons is None else layers_text(self.neurons)))
        for pair in (self.report.parts or ()) if self.report is not None else ():
            if pair.verdict is Verdict.HOMOLOGOUS:
                what, n = ("layer", len(pair.layers)) if pair.experts is None else ("expert", len(pair.experts))
                which = f"{n} {what}{'' if n == 1 else 's'} matched, {probability_text(pair.log10_p)}"
                parts.append((pair.candidate, f"{which}, with {pair.reference} of {self.name}"))
        return tuple(parts)


def records_of_report(report: HomologyReport) -> tuple[BaseRecord, ...]:
    """Return the reference of a report as the only base."""
    reference = report.reference
    return (BaseRecord(name=reference.repo, report=report, commit=reference.commit),)


def records_of_check(check: LineageCheck) -> tuple[BaseRecord, ...]:
    """Return the declared bases with the measurements of ``verify``."""
    declared = check.declared
    return tuple(
        BaseRecord(
            name=base.base,
            declared_in=declared.source or "README.md",
            relation=declared.relation,
            report=base.report,
            why_not=base.why_not,
            is_under_adapter=base.is_under_adapter,
            commit=None if base.report is None else base.report.reference.commit,
        )
        for base in check.bases
    )


def records_of_family(family: Family) -> tuple[BaseRecord, ...]:
    """Return the bases found in an index or declared by the card."""
    records = {} if family.declared is None else {record.name: record for record in records_of_check(family.declared)}
    for ancestor in () if family.found is None else family.found.with_shared_weights:
        name = ancestor.base.repo
        declared = records.get(name)
        report = declared.report if declared is not None and declared.is_related else ancestor.report
        records[name] = BaseRecord(
            name=name,
            declared_in=None if declared is None else declared.declared_in,
            relation=None if declared is None else declared.relation,
            is_under_adapter=declared is not None and declared.is_under_adapter,
            report=report,
            found_by=ancestor.evidence,
            commit=ancestor.base.commit if report is None else report.reference.commit,
        )
    return tuple(_with_layers(record, family) for record in records.values())


def _with_layers(record: BaseRecord, family: Family) -> BaseRecord:
    return replace(record, neurons=family.layers.get(record.name))


SpecVersion = Literal["1.6", "1.7"]
SPEC_VERSIONS: tuple[SpecVersion, ...] = ("1.6", "1.7")

NAMESPACE = "mdir-hf:"
HUB = "https://huggingface.co"
_LONGEST = 500
_SERIALS = uuid.UUID("8d1f6b52-6f7f-5b0c-9a52-3a3f0e4a6c11")
"""UUID namespace of serial numbers."""


def bom_json(
    model: ModelFacts,
    bases: Sequence[BaseRecord],
    *,
    version: str = "1.6",
    timestamp: datetime | None = None,
) -> str:
    """Write a model's bill of materials in CycloneDX 1.6 or 1.7.

    ``timestamp`` must have a time zone; it defaults to the date of the commit, if known. Equal arguments give equal
    bytes, because the serial number is derived from the content.

    Raises:
        InputError: If the version is not 1.6 or 1.7.
        MissingExtraError: If cyclonedx-python-lib is not installed.
    """
    if version not in SPEC_VERSIONS:
        raise InputError(f"a bill of materials is written as CycloneDX {' or '.join(SPEC_VERSIONS)}, not {version!r}")
    require_bom()
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    bom = Bom(serial_number=uuid.UUID(int=0))
    # The library's default is the current time. If no date is known, the document states none.
    bom.metadata.timestamp = timestamp or model.date  # type: ignore[assignment]
    bom.metadata.tools.components.add(
        Component(name="mdir-hf", version=__version__, type=ComponentType.APPLICATION, bom_ref="mdir-hf")
    )
    bom.components.add(_model_component(model, bases))
    form = SchemaVersion.from_version(version)
    unnumbered = make_outputter(bom, OutputFormat.JSON, form).output_as_string(indent=2)
    bom.serial_number = uuid.uuid5(_SERIALS, unnumbered)
    return make_outputter(bom, OutputFormat.JSON, form).output_as_string(indent=2) + "\n"


def _model_component(model: ModelFacts, bases: Sequence[BaseRecord]) -> Component:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import ComponentType
    from cyclonedx.model.license import LicenseAcknowledgement

    component = _named(model.name, model.repo, model.commit, ref=_ref(model))
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=file.sha256) for file in model.files if file.sha256]
    if len(model.files) == 1:
        component.hashes = hashes
    if model.licence is not None:
        licence = LicenseFactory().make_from_string(
            visible_text(model.licence, length=_LONGEST), license_acknowledgement=LicenseAcknowledgement.DECLARED
        )
        component.licenses.add(licence)
    for file in model.files:
        part = _named(file.path, None, None, ref=f"{_ref(model)}#file:{file.path}")
        part.type = ComponentType.FILE
        if file.sha256 is not None:
            part.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=file.sha256))
        component.components.add(part)
    for name, of_part in _parts(bases):
        part = _named(name, None, None, ref=f"{_ref(model)}#part:{name}")
        part.description = f"Part of {model.name} that shares weight ancestry with another model."
        part.pedigree = _pedigree(of_part, within=f"#part:{name}", part=name)
        component.components.add(part)
    component.pedigree = _pedigree(bases, within="")
    component.properties = _model_properties(bases)
    return component


def _pedigree(bases: Iterable[BaseRecord], *, within: str, part: str | None = None) -> Pedigree | None:
    from cyclonedx.model.component import Pedigree

    components: dict[str, list[Component]] = {"ancestors": [], "variants": []}
    notes = []
    for base in bases:
        place = base.place if part is None else _place_of_part(base)
        if place is not None:
            components[place].append(_base_component(base, within=within))
        if part is None and base.standing is not None:
            notes.append(f"{base.shown}: {base.standing.words}{_why(base)}.")
    if not notes and not any(components.values()):
        return None
    return Pedigree(
        ancestors=components["ancestors"],
        variants=components["variants"],
        notes=visible_text(" ".join(sorted(notes)), length=4 * _LONGEST) or None,
    )


def _why(base: BaseRecord) -> str:
    if base.standing in (Standing.NOT_CONFIRMED, Standing.NOT_MEASURED):
        return f" ({base.why_not if base.report is None else base.report.sentence})"
    return ""


def _place_of_part(base: BaseRecord) -> str:
    return base.place or ("ancestors" if base.declared_in is not None else "variants")


def _base_component(base: BaseRecord, *, within: str) -> Component:
    reference = f"{_purl_text(base.name, base.commit) if base.is_on_hub else base.shown}{within or '#base'}"
    component = _named(base.shown, base.name if base.is_on_hub else None, base.commit, ref=reference)
    component.properties = sorted(_base_properties(base))
    return component


def _parts(bases: Sequence[BaseRecord]) -> Iterator[tuple[str, list[BaseRecord]]]:
    of_part: dict[str, list[BaseRecord]] = {}
    for base in bases:
        mapped = base.neurons
        for name, _ in base.matched_parts:
            if name == "language model" and mapped is not None and len(mapped.matches) < len(mapped.candidate_layers):
                layers = ", ".join(str(match.candidate) for match in mapped.matches)
                name = f"language model, layer{'' if len(mapped.matches) == 1 else 's'} {layers}"
            of_part.setdefault(name, []).append(base)
    names = {frozenset(base.name for base in of_this) for of_this in of_part.values()}
    if len(of_part) > 1 and len(names) > 1:
        yield from sorted(of_part.items())


def _model_properties(bases: Sequence[BaseRecord]) -> list[Property]:
    properties = [_property("checked-with", f"mdir-hf {__version__}")]
    for base in bases:
        if base.declared_in is not None and base.standing in (Standing.NOT_CONFIRMED, Standing.NOT_MEASURED):
            outcome = "not_measured" if base.report is None else str(base.report.verdict)
            purl = _purl_text(base.name, base.commit)
            properties.append(
                _property("declared-not-confirmed", f"{purl} ({base.declared_in}): {outcome}{_why(base)}")
            )
        if base.report is not None:
            for fact in base.report.direction:
                text = f"{fact.fact}: {_without_paths(fact.evidence, base.report)}"
                properties.append(_property("direction", text))
    return sorted(properties)


def _without_paths(text: str, report: HomologyReport) -> str:
    for model in (report.reference, report.candidate):
        if model.commit is None:
            text = text.replace(model.repo, PurePath(model.repo).name or "the model")
    return text


def _base_properties(base: BaseRecord) -> Iterator[Property]:
    yield _property("standing", str(base.standing or Standing.NOT_CONFIRMED))
    yield _property("declared", "no" if base.declared_in is None else f"yes ({base.declared_in})")
    if base.relation is not None:
        yield _property("declared-relation", base.relation)
    if base.found_by is not None:
        yield _property("found", base.found_by)
    for part, how in base.matched_parts:
        yield _property(f"match:{part}", how or "shared weight ancestry")
    if base.report is not None:
        yield from _report_properties(base.report)


def _report_properties(report: HomologyReport) -> Iterator[Property]:
    yield _property("verdict", str(report.verdict))
    yield _property("log10-p", "not a bound" if report.log10_p is None else f"{report.log10_p:.4g}")
    yield _property("p-is-bound", str(report.p_is_bound).lower())
    if report.assumption is not None:
        yield _property("rests-on", report.assumption.words)
    if report.agreement is not None:
        yield _property("agreement", report.agreement)
    yield _property("alpha", f"{report.alpha:g}")
    yield _property("level", str(report.level))
    if report.settled_by is not None:
        yield _property("settled-by", report.settled_by.words)
    if report.sample_seed is not None:
        yield _property("sample-seed", str(report.sample_seed))
    if report.coverage is not None:
        for entry in report.coverage.candidate:
            yield _property(f"coverage:{entry.part}", _covered(entry))
        for entry in report.coverage.reference:
            yield _property(f"coverage-of-base:{entry.part}", _covered(entry))


def _covered(entry: PartCoverage) -> str:
    match = {True: "; matches", False: "; no match", None: ""}[entry.is_match]
    use = "; not loaded by this model" if entry.is_loaded is False else ""
    return (str(entry.treatment) if entry.reason is None else f"{entry.treatment}: {entry.reason}") + match + use


def _property(name: str, value: str) -> Property:
    from cyclonedx.model import Property

    return Property(name=NAMESPACE + visible_text(name, length=200), value=visible_text(value, length=_LONGEST))


def _named(name: str, repo: str | None, commit: str | None, *, ref: str) -> Component:
    from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    group, _, own_name = repo.rpartition("/") if repo is not None else ("", "", name)
    component = Component(
        name=visible_text(own_name, length=_LONGEST),
        group=group or None,
        version=commit,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=visible_text(ref),
    )
    if repo is not None:
        component.purl = PackageURL("huggingface", group or None, own_name, version=commit)
        url = f"{HUB}/{repo}" + (f"/tree/{commit}" if commit else "")
        component.external_references.add(ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(url)))
    return component


def _purl_text(repo: str, commit: str | None) -> str:
    from packageurl import PackageURL

    group, _, own_name = repo.rpartition("/")
    return PackageURL("huggingface", group or None, own_name, version=commit).to_string()


def _ref(model: ModelFacts) -> str:
    return model.name if model.repo is None else _purl_text(model.repo, model.commit)
