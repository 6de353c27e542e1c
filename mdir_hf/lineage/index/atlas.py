"""The atlas: an index of many base models, published as a dataset with a table."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import HubError, one_line
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import CHOOSING, BaseOutcome, extend_locked_index, index_locked
from mdir_hf.lineage.index.table import TABLE, AtlasBase, EntryState, read_table
from mdir_hf.model.open import Reading
from mdir_hf.writing import write_together

INDEX = "bases.safetensors"
CARD = "README.md"

SHIPPED = Path(__file__).parent / "shipped" / INDEX
"""The small index that is part of the package."""

PLACE_VARIABLE = "MDIR_HF_ATLAS"
"""Environment variable with the path or Hub URL of the default index."""

_STATES: Mapping[str, EntryState] = {
    "added": "held", "known": "held", "gated": "gated", "missing": "missing", "failed": "failed",
}  # fmt: skip


def build_atlas(
    bases: Sequence[AtlasBase],
    folder: Path,
    *,
    on_model: Callable[[BaseOutcome], None] = lambda outcome: None,
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(progress=False),
    restart: bool = False,
) -> tuple[AtlasBase, ...]:
    """Build or extend an atlas, skipping bases that are stored at their newest commit.

    Even if interrupted, writes the index, table and card to ``folder``. With ``restart``, every base is read again,
    and the earlier index stays until the new one is whole.

    Raises:
        InputError: If the folder cannot be used, or no base of a new atlas can be opened.
    """
    with index_locked(folder / INDEX):
        earlier_bases = {base.repo: base for base in read_table(folder)}
        wanted_bases = {base.repo: base for base in bases}
        table = {
            **earlier_bases,
            **{repo: _merged(earlier_bases.get(repo), base) for repo, base in wanted_bases.items()},
        }
        path = folder / INDEX

        def record(outcome: BaseOutcome) -> None:
            state = _STATES[outcome.kind]
            table[outcome.name] = replace(table[outcome.name], state=state, reason=outcome.reason)
            on_model(outcome)

        try:
            extend_locked_index(
                list(wanted_bases),
                path,
                on_model=record,
                choosing=_one_of_each_family(bases),
                reading=reading,
                listeners=listeners,
                restart=restart,
            )
        finally:
            models_held = (
                {} if not path.exists() else {base.model.repo: base.model for base in BaseIndex.load(path).bases}
            )
            for repo, base in table.items():
                model = models_held.get(repo)
                if model is not None:
                    table[repo] = replace(
                        base,
                        state="held",
                        commit=model.commit,
                        architecture=model.architecture,
                        width=model.hidden_size,
                        layers=model.layers,
                    )
                elif base.state == "held":  # stopped before the index was written
                    table[repo] = replace(base, state="not tried")
            _write(tuple(table.values()), folder)
        return tuple(table.values())


def open_index(
    place: str | None = None, *, token: str | bool | None = None, cache_dir: str | os.PathLike[str] | None = None
) -> tuple[BaseIndex, str]:
    """Open an index at its newest commit, by default the one named by ``MDIR_HF_ATLAS``.

    Returns the index and an empty string. If the default is unset or unreadable, returns the package's own index and
    the reason instead. ``place`` is as for :meth:`BaseIndex.open`.

    Raises:
        CorruptCheckpointError: If the file is not an index.
        HubError: If the index named by ``place`` cannot be read from the Hub.
    """
    if place is not None:
        return BaseIndex.open(place, token=token, cache_dir=cache_dir), ""
    place = os.environ.get(PLACE_VARIABLE, "").strip()
    why = f"for hundreds, set {PLACE_VARIABLE} or --index"
    if place:
        try:
            return BaseIndex.open(place, token=token, cache_dir=cache_dir), ""
        except HubError as exc:
            why = one_line(exc)
    shipped = BaseIndex.load(SHIPPED)
    return shipped, f"searched: the {len(shipped)} base models that come with the package ({why})"


def _merged(earlier: AtlasBase | None, base: AtlasBase) -> AtlasBase:
    if earlier is None:
        return base
    return replace(
        earlier,
        family=base.family or earlier.family,
        parameters=base.parameters or earlier.parameters,
        licence=base.licence or earlier.licence,
        year=base.year or earlier.year,
    )


def _one_of_each_family(bases: Sequence[AtlasBase]) -> list[str]:
    firsts = {base.family: base.repo for base in reversed(bases)}
    repos = list(reversed(firsts.values()))
    step = max(1, len(repos) // CHOOSING)
    first_repos = repos[::step]
    return [*first_repos, *(repo for repo in repos if repo not in set(first_repos))]


def _write(table: Sequence[AtlasBase], folder: Path) -> None:
    lines = "".join(json.dumps(asdict(base), ensure_ascii=False) + "\n" for base in table)
    write_together(folder, {TABLE: lines.encode(), CARD: atlas_card(table).encode()})


def atlas_card(table: Sequence[AtlasBase]) -> str:
    """Return an atlas's dataset card."""
    states = Counter(base.state for base in table)
    front = {
        "pretty_name": "Atlas of base models",
        "tags": ["weight-ancestry", "mdir-hf"],
        "configs": [{"config_name": "bases", "data_files": TABLE, "default": True}],
    }
    not_held = ", ".join(f"{n} {state}" for state, n in states.items() if state != "held") or "none"
    return f"""---
{yaml.safe_dump(front, sort_keys=False).rstrip()}
---

# Atlas of base models

Which base models does a model descend from? `{INDEX}` holds a few rows of the embedding and a few neurons of
{states["held"]} base models, each at the commit that `{TABLE}` names. Not held: {not_held}. The table has the reasons.

```
mdir-hf family owner/name --index https://huggingface.co/datasets/OWNER/NAME/resolve/main/{INDEX}
```

A result says that weights are shared. It does not say which model came first. The licence of each base holds for its
rows, too: a few hundred kilobytes of each.
"""


def summary_of(table: Sequence[AtlasBase]) -> str:
    """Summarise how many listed bases an atlas contains, and name the others."""
    n_held = sum(base.state == "held" for base in table)
    lines = [f"{n_held} of {len(table)} base models are in the atlas"]
    for state in ("gated", "missing", "failed", "not tried"):
        names = [base.repo for base in table if base.state == state]
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            lines.append(f"  {state}: {len(names)}: {', '.join(names[:8])}{more}")
    return "\n".join(lines)
