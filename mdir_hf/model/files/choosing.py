"""Choose the model among weight files without usual names, by what their headers say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from mdir_hf.errors import SeveralModelsError, UnsupportedFormatError
from mdir_hf.model.files.index import slices_among, slices_refused
from mdir_hf.model.files.kinds import FileContents, contents_of
from mdir_hf.model.files.pytorch import PYTORCH_SUFFIXES, PytorchSource
from mdir_hf.model.files.safetensors import SafetensorsSource
from mdir_hf.model.files.shards import ShardedTensors, list_some
from mdir_hf.model.sources import FileTree

MOST_CLASSIFIED = 16
"""Maximum number of files whose headers are read to choose the model."""

_DIGITS = re.compile(r"\d+")


def open_pytorch_model(tree: FileTree, variant: str | None) -> ShardedTensors | None:
    """Open the model among the root's ``.pth``, ``.pt``, ``.ckpt`` and ``.bin`` files, or the only adapter there.

    Files whose tensors complement each other and whose names differ only in numbers are shards of one model. Returns
    None if no file holds weights, or if a variant is given.

    Raises:
        UnsupportedFormatError: If several files could be the model, or they are slices of ranks.
    """
    return None if variant is not None else choose_by_headers(tree, _pytorch_files(tree), PytorchSource)


def choose_by_headers(
    tree: FileTree, paths: Sequence[str], source_type: type[SafetensorsSource] | type[PytorchSource]
) -> ShardedTensors | None:
    """Open the model among files of one format; see :func:`open_pytorch_model`."""
    slices = slices_among(paths)
    if slices and len(slices) == len(paths) and are_numbered(paths):
        raise UnsupportedFormatError(slices_refused(slices))
    if len(paths) > MOST_CLASSIFIED:
        raise SeveralModelsError(
            f"there are {len(paths)} weight files ({list_some(paths)}), too many to find the model by their headers; "
            "name one file (owner/name/file.pth, or a path)",
            files=tuple(paths),
        )
    sources = {path: source_type(tree, paths=[path]) for path in paths}
    contents = {path: contents_of(source, path) for path, source in sources.items()}
    models = [file for file in contents.values() if file.kind == "model"]
    chosen = models or [file for file in contents.values() if file.kind == "adapter"]
    if not chosen:
        return None
    source: ShardedTensors
    if len(chosen) == 1:
        source = sources[chosen[0].path]
    else:
        _check_shards(chosen)
        source = source_type(tree, paths=[file.path for file in chosen])
    skipped = [file for path, file in contents.items() if path not in source.paths]
    if skipped:
        source.add_note(f"not read: {described(skipped)}")
    return source


def refuse_without_model(tree: FileTree, variant: str | None) -> PytorchSource | None:
    """Say what each PyTorch file holds if none of them is a model. A single file raises its own error when read."""
    paths = () if variant is not None else _pytorch_files(tree)
    if len(paths) == 1:
        only = PytorchSource(tree, paths=paths)
        contents = contents_of(only, paths[0])
        if contents.kind == "other":
            return only
    if not paths:
        return None
    kinds = [contents_of(PytorchSource(tree, paths=[path]), path) for path in paths[:MOST_CLASSIFIED]]
    raise UnsupportedFormatError(f"no file here holds a model's weights: {described(kinds)}")


def files_beside(tree: FileTree, paths: Collection[str], *, most: int = 16) -> Iterator[FileContents]:
    """Yield what the root's other weight files hold, reading their headers."""
    others = sorted(
        path
        for path in tree.files
        if "/" not in path and path not in paths and path.lower().endswith((".safetensors", *PYTORCH_SUFFIXES))
    )
    for path in others[:most]:
        source = SafetensorsSource if path.lower().endswith(".safetensors") else PytorchSource
        yield contents_of(source(tree, paths=[path]), path)


def described(files: Sequence[FileContents]) -> str:
    """Name files and their contents: ``optimizer.pt (the state of an optimizer), …``."""
    return list_some((f"{file.path} ({file.detail})" for file in files), 8)


def _pytorch_files(tree: FileTree) -> tuple[str, ...]:
    return tuple(path for path in sorted(tree.files) if "/" not in path and path.lower().endswith(PYTORCH_SUFFIXES))


def are_numbered(paths: Sequence[str]) -> bool:
    """Return whether names differ only in numbers."""
    return len({_DIGITS.sub("0", path) for path in paths}) == 1


def _check_shards(models: Sequence[FileContents]) -> None:
    """Raise an error unless the files are shards of one model."""
    holders = Counter(name for file in models for name in file.shapes)
    paths = [file.path for file in models]
    n_shared = sum(n > 1 for n in holders.values())
    if are_numbered(paths) and not n_shared:
        return
    if n_shared and len(slices_among(paths)) == len(paths):
        raise UnsupportedFormatError(slices_refused(paths))
    alike = "; most tensors are in several of them, as in averaged copies (EMA) or checkpoints of several epochs"
    raise SeveralModelsError(
        f"it is unclear which of {len(paths)} files is the model ({described(models)})"
        f"{alike if 2 * n_shared > len(holders) else ''}; name one file (owner/name/file.pth, or a path), or put the "
        "files of one checkpoint into a folder of their own",
        files=tuple(paths),
    )
