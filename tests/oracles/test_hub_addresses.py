"""Random addresses on the Hub, against huggingface_hub's parser."""

from __future__ import annotations

import random

import pytest

from mdir_hf.model.hub.reference import parse_reference
from tests.oracles.tally import cases

hf_uris = pytest.importorskip("huggingface_hub.utils._hf_uris")

pytestmark = pytest.mark.slow

LIBRARY = "huggingface_hub"
OWNERS, NAMES = ("owner", "meta-llama", "0x_y", "A.b"), ("name", "Llama-3.1-8B", "a_b.c", "x")
REVISIONS = ("", "main", "v1.0", "a" * 40, "refs/pr/3", "refs/pr/12", "refs/convert/parquet", "refs/convert/x-y.z")
ESCAPED = ("feature%2Ffoo", "release%2F1%2F2")
PLACES = ("", "model.gguf", "sub/model.safetensors", "sub", "a/b/c", "original/consolidated.00.pth", "x y/z")


def drawn(rng: random.Random) -> str:
    name, place = f"{rng.choice(OWNERS)}/{rng.choice(NAMES)}", rng.choice(PLACES)
    revision = rng.choice(REVISIONS + ESCAPED)
    if rng.random() < 0.6:
        kind = rng.choice(["", "models/"])
        return f"hf://{kind}{name}{'@' if revision else ''}{revision}{'/' if place else ''}{place}"
    host = rng.choice(["https://huggingface.co", "https://hf.co", "http://huggingface.co"])
    if not revision:
        return f"{host}/{name}"
    page = rng.choice(["resolve", "blob", "raw"]) if place.endswith((".gguf", ".pth", ".safetensors")) else "tree"
    quoted = place.replace(" ", "%20")
    return f"{host}/{name}/{page}/{revision}{'/' if place else ''}{quoted}"


def test_addresses_are_parsed_as_by_the_hub_client(tally):
    rng = random.Random(0)
    for _ in range(cases(300, 5000)):
        address = drawn(rng)
        theirs = hf_uris.parse_hf_uri(address)
        ours = parse_reference(address, allow_local=False)
        place = "/".join(filter(None, (ours.subfolder, ours.file)))
        same = (ours.repo_id, ours.revision, place) == (theirs.id, theirs.revision, theirs.path_in_repo)
        tally.agree(LIBRARY, f"{address}: {ours} and {theirs}", same)
