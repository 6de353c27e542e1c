"""``mdir-hf card``: add a lineage section to a model card in a pull request."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from huggingface_hub import constants

from mdir_hf.errors import CardError, InputError, RevisionNotFoundError, naming
from mdir_hf.lineage.cards import RELATIONS
from mdir_hf.lineage.cards.badge import make_badge
from mdir_hf.lineage.cards.branches import changed_files, hub_reference
from mdir_hf.lineage.cards.claim import Claim, PinnedModel
from mdir_hf.lineage.cards.declared import README
from mdir_hf.lineage.cards.front_matter import MOST_BYTES, Card, parse_card, read_metadata, split_lines, with_metadata
from mdir_hf.lineage.cards.section import (
    BADGE_PATH,
    BOM_PATH,
    REPORT_PATH,
    LinkedBom,
    lineage_section,
    replace_section,
)
from mdir_hf.model.hub import Repository, RepositoryOptions, open_repository, parse_reference
from mdir_hf.model.hub.endpoint import current_endpoint
from mdir_hf.model.hub.pull_request import ProposedCommit, PullRequest, open_pull_request
from mdir_hf.names import is_repo_id
from mdir_hf.report import HomologyReport

TITLE = "Add weight ancestry measured by mdir-hf"


@dataclass(frozen=True, slots=True)
class CardProposal:
    """A proposed change to a model card, with the report and badge to add.

    Attributes:
        files: Contents of the new README.md, report and badge, keyed by path.
        changed: Files that changed since the commit in the report.
    """

    repo: str
    branch: str | None
    commit: str
    before: bytes | None
    files: Mapping[str, bytes]
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    claim: Claim
    fields: tuple[str, ...]

    @property
    def after(self) -> bytes:
        """The new README.md."""
        return self.files[README]

    @property
    def is_unchanged(self) -> bool:
        """Whether the repository already contains all files."""
        return not self.missing

    def diff(self) -> str:
        """Return a unified diff with control characters escaped."""
        old = split_lines("" if self.before is None else self.before.decode("utf-8"))
        lines = difflib.unified_diff(
            old, split_lines(self.after.decode("utf-8")), f"{README} at {self.commit[:7]}", f"{README} proposed"
        )
        return "".join(f"{_printable(line.rstrip(chr(10) + chr(13)))}\n" for line in lines)

    def open_pull_request(self, *, token: str | bool | None = None) -> PullRequest:
        """Propose the card, the report and the badge in one commit."""
        return open_pull_request(
            self.repo,
            ProposedCommit(self.files, TITLE, self._description(), parent=self.commit),
            token=token,
            branch=self.branch or constants.DEFAULT_REVISION,
        )

    def _description(self) -> str:
        claim = self.claim
        bom = f", and the bill of materials `{BOM_PATH}`" if BOM_PATH in self.files else ""
        fields = f" and sets {' and '.join(f'`{name}`' for name in self.fields)}" if self.fields else ""
        return (
            f"{claim.sentence}.\n\n"
            f"Compared: `{claim.reference}` and `{claim.candidate}`. This adds a section to the card{fields}, the "
            f"report `{REPORT_PATH}` (sha256 `{claim.short_digest}`) and its badge{bom}. {claim.what_p_says}"
        )


def propose_card(
    repo: str,
    report: HomologyReport,
    *,
    relation: str | None = None,
    confirm_base_model: bool = False,
    bom: LinkedBom | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> CardProposal:
    """Add a lineage section to a Hub repository's card, in memory.

    ``confirm_base_model`` declares the report's other model as the base; the author must confirm this, because
    measurements do not show direction. ``relation`` (finetune, merge, quantized or adapter) requires it.

    Raises:
        InputError: If the report is about other models, or one of its models is not on the Hub.
        CardError: If the card cannot be changed safely, or declares another base model.
        HubError: If the card cannot be read.
    """
    if relation is not None and (relation not in RELATIONS or not confirm_base_model):
        raise InputError(f"a relation must be one of {', '.join(RELATIONS)} and needs confirm_base_model")
    repo, branch = _hub_repo(repo)
    badge = make_badge(report)
    own_model, other_model = _sides(badge.claim, repo)
    repository = open_repository(hub_reference(repo, branch), RepositoryOptions(token=token, cache_dir=cache_dir))
    if repository.commit is None:
        raise InputError("has no commit that a card could be written on", subject=repo)
    subject = f"{repository.label}:{README}"
    before = repository.read(README, max_bytes=MOST_BYTES) if README in repository.files else None
    card = parse_card(before or b"", subject=subject)
    values: dict[str, str | list[str]] = {}
    if confirm_base_model:
        values = _base_model(read_metadata(card, subject=subject), other_model, own_model, relation, subject)
        card = with_metadata(card, values, subject=subject)
    section = lineage_section(badge, report, repo=repo, related_model=other_model, endpoint=current_endpoint(), bom=bom)
    card = with_section(card, section, subject)
    files = {
        README: card.to_bytes(),
        REPORT_PATH: f"{report.to_json()}\n".encode("ascii"),
        BADGE_PATH: badge.svg.encode("ascii"),
        **({} if bom is None else {BOM_PATH: bom.content}),
    }
    return CardProposal(
        repo=repo,
        branch=branch,
        commit=repository.commit,
        before=before,
        files=files,
        missing=tuple(path for path, content in files.items() if not _holds(repository, path, content)),
        changed=_changed(repository, own_model, token, cache_dir),
        claim=badge.claim,
        fields=tuple(values),
    )


def _holds(repository: Repository, path: str, content: bytes) -> bool:
    entry = repository.files.get(path)
    blob_id = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
    return entry is not None and entry.blob_id == blob_id


def _changed(
    head: Repository, own_model: PinnedModel, token: str | bool | None, cache_dir: str | os.PathLike[str] | None
) -> tuple[str, ...]:
    if head.commit == own_model.commit:
        return ()
    assert own_model.repo is not None
    try:
        pinned = open_repository(
            hub_reference(own_model.repo, own_model.commit), RepositoryOptions(token=token, cache_dir=cache_dir)
        )
    except RevisionNotFoundError as exc:
        raise InputError(
            f"the report is about commit {own_model.commit}, which the repository no longer has; compare again",
            subject=own_model.repo,
        ) from exc
    return changed_files(pinned, head)


def _hub_repo(text: str) -> tuple[str, str | None]:
    name, _, branch = text.partition("@")
    if is_repo_id(name):
        return name, branch or None
    parsed = parse_reference(text)
    if parsed.repo_id is None:
        raise InputError("is a local folder; a card is written for a repository on the Hub", subject=text)
    return parsed.repo_id, parsed.revision


def _sides(claim: Claim, repo: str) -> tuple[PinnedModel, PinnedModel]:
    sides = (claim.reference, claim.candidate)
    own_model = next((model for model in sides if (model.repo or "").lower() == repo.lower()), None)
    if own_model is None:
        on_hub = [str(model) for model in sides if model.repo is not None]
        if not on_hub:
            raise InputError("cards are for Hub repositories; the report compares two local folders", subject=repo)
        raise InputError(
            f"the report does not mention it, but {sides[0]} and {sides[1]}; name {' or '.join(on_hub)}", subject=repo
        )
    other_model = sides[1] if own_model is sides[0] else sides[0]
    if other_model.repo is None:
        raise InputError(
            "the report compares it with a local folder, which no reader could check; compare two models on the Hub",
            subject=repo,
        )
    return own_model, other_model


def _base_model(
    metadata: Mapping[str, object], base: PinnedModel, own_model: PinnedModel, relation: str | None, subject: str
) -> dict[str, str | list[str]]:
    assert base.repo is not None and own_model.repo is not None
    if base.repo.lower() == own_model.repo.lower():
        raise InputError("a model is not its own base model; leave out --confirm-base-model", subject=own_model.repo)
    values: dict[str, str | list[str]] = {}
    declared = metadata.get("base_model")
    declared_bases = declared if isinstance(declared, list) else [] if declared in (None, "") else [declared]
    texts = [entry for entry in declared_bases if isinstance(entry, str)]
    if len(texts) < len(declared_bases):
        raise CardError("its base_model is not made of ids of repositories; correct it by hand first", subject=subject)
    if base.repo.lower() not in (entry.strip().lower() for entry in texts):
        if texts and relation != "merge":
            raise CardError(
                f"it declares base_model {', '.join(map(ascii, texts))} already, and the report is about {base.repo}; "
                "correct the card by hand, or add a further model of a merge with --base-model-relation merge",
                subject=subject,
            )
        values["base_model"] = [*texts, base.repo] if texts else base.repo
    if relation is not None:
        values["base_model_relation"] = relation
    return values


def with_section(card: Card, section: str, subject: str) -> Card:
    """Insert a section at the end of a card, or replace an earlier one; see :func:`replace_section`."""
    if card.closing and not card.closing.endswith(("\n", "\r")):
        card = replace(card, closing=card.closing + card.line_end)
    if not card.body:
        section = section.replace("\n", card.line_end)
    with naming(subject):
        return replace(card, body=replace_section(card.body, section))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)
