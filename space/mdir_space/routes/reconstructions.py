"""Reconstructions for programs: the tool's result, and the download of its files."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mdir_space.jobs.reconstruction import DOWNLOAD_S, ReconstructionResult
from mdir_space.jobs.service import Answered, Service
from mdir_space.routes.answers import described, listed, object_of

HEADERS = {
    "cache-control": "private, no-store",
    "content-disposition": "attachment",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

RECONSTRUCTED = object_of(
    says=described("The transformation as lines of text."),
    reference=described("The model that it starts from, at the commit that was read."),
    candidate=described("The model that it leads to, at the commit that was read."),
    stream=described(
        "The map of residual channels: its kind, scale and relative residual.",
        {"type": "object"},
    ),
    layers=described(
        "Layers of the candidate that have an ancestor: [reference layer, candidate layer].",
        listed({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
    ),
    residuals=described("Relative residual of the embedding and the head, by role.", {"type": "object"}),
    index=described(
        "The whole reconstruction.json: kinds and residuals of all maps, and the arrays of the file. Null unless it "
        "is asked for with detailed.",
        {"type": ["object", "null"]},
    ),
    link=described(
        "URL of a zip file with reconstruction.json and reconstruction.safetensors; anyone who has it may "
        "download the file."
    ),
    n_bytes=described("Size of that file.", {"type": "integer", "minimum": 0}),
    link_seconds=described("Time for which the link works.", {"type": "number", "minimum": 0}),
)
"""Schema of :func:`reconstructed`."""


def reconstructed(answered: Answered[ReconstructionResult], link: str, *, detailed: bool) -> dict[str, Any]:
    """Return a reconstruction, with the whole index (some kilobytes per layer) if ``detailed``.

    ``link`` is the URL of the files.
    """
    result = answered.result
    return {
        "says": "\n".join(result.lines),
        "reference": result.reference,
        "candidate": result.candidate,
        "stream": result.index["stream"],
        "layers": [
            [layer["reference"], layer["candidate"]]
            for layer in result.index["layers"]
            if layer["reference"] is not None
        ],
        "residuals": result.index["residuals"],
        "index": result.index if detailed else None,
        "link": link,
        "n_bytes": result.n_bytes,
        "link_seconds": DOWNLOAD_S,
    }


class ReconstructionFiles:
    """Serves the files of reconstructions under their secret names."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def send(self, request: Request) -> Response:
        """Handle a request for ``NAME.zip``."""
        archive = self._service.downloads.get(request.path_params["name"])
        if archive is None:
            words = "This reconstruction is no longer here. Compare the models again.\n"
            return PlainTextResponse(words, status_code=404, headers={"cache-control": "no-store"})
        return Response(archive, media_type="application/zip", headers=HEADERS)
