"""The zip directory: written by torch or other programs, larger than 4 GiB, or malicious."""

import io
import struct
import zipfile

import pytest
import torch

from mdir_hf.errors import CheckpointError, CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.pytorch import PytorchSource
from mdir_hf.model.files.pytorch.archive import Archive, NoArchiveError
from mdir_hf.model.hub.local import LocalRepository
from tests.conformance_tensors import MemoryBytes, MemoryTree
from tests.model.files.pytorch.archives import holding, saved, with_pickle, zipped


def archive_of(content):
    return Archive(MemoryBytes("file", content))


def source_of(content):
    return PytorchSource(MemoryTree({"pytorch_model.bin": content}), paths=["pytorch_model.bin"])


def written_by_torch():
    return saved({f"layer.{n}": torch.arange(float(n)) for n in range(1, 9)})


def test_entries_are_those_that_zipfile_finds():
    for content in (written_by_torch(), zipped({"a/x": b"12", "a/y": b"", "ä": b"3"})):
        archive, expected = archive_of(content), zipfile.ZipFile(io.BytesIO(content))
        assert set(archive.entries) == set(expected.namelist())
        for name, entry in archive.entries.items():
            assert archive.content(entry) == expected.read(name)


def test_the_place_of_data_is_computed_and_right():
    archive = archive_of(written_by_torch())
    for entry in archive.entries.values():
        assert entry.aligned_start(64) == archive.data_start(entry)


@pytest.mark.slow
def test_a_file_past_four_gib(tmp_path):
    """Written by torch without data, so the file is sparse: one storage is longer than 2^32, one lies beyond it."""
    path = tmp_path / "pytorch_model.bin"
    with torch._subclasses.FakeTensorMode():
        state = {"two_gib": torch.empty(1 << 29), "five_gib": torch.empty(5 << 28), "last": torch.empty(6)}
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(state, path)
    assert path.stat().st_size > 7 << 30
    source = PytorchSource(LocalRepository(tmp_path), paths=["pytorch_model.bin"])
    archive = Archive(source._byte_source("pytorch_model.bin"))
    for entry in archive.entries.values():
        assert entry.aligned_start(64) == archive.data_start(entry)
    start = source.spec("last").start
    assert start > 1 << 32
    with path.open("r+b") as file:
        file.seek(start)
        file.write(struct.pack("<6f", *range(6)))
    assert torch.equal(source.read("last"), torch.arange(6.0))
    loaded = torch.load(path, mmap=True, weights_only=True)
    assert torch.equal(loaded["last"], torch.arange(6.0))


def patched(content, at, value, *, size=4):
    """The content with a little-endian number written at the given offset."""
    return content[:at] + value.to_bytes(size, "little") + content[at + size :]


def central(content, name):
    """Offset of the directory entry with this name."""
    at = content.index(b"PK\x01\x02")
    while True:
        n_name, n_extra, n_comment = struct.unpack_from("<3H", content, at + 28)
        if content[at + 46 : at + 46 + n_name] == name.encode():
            return at
        at += 46 + n_name + n_extra + n_comment


def test_overlapping_entries_are_refused():
    content = holding({})
    shifted = patched(content, central(content, "archive/data/0") + 42, content.index(b"PK\x03\x04") + 4)
    with pytest.raises(CorruptCheckpointError, match="overlaps the next one"):
        archive_of(shifted)


def test_two_entries_in_one_place_are_refused():
    content = holding({})
    same = patched(content, central(content, "archive/data/0") + 42, 0)
    with pytest.raises(CorruptCheckpointError, match="overlaps the next one"):
        archive_of(same)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_duplicate_entry_is_refused():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"1")
        archive.writestr("a/data.pkl", b"2")
    with pytest.raises(CorruptCheckpointError, match=r"'a/data\.pkl' is in its directory twice"):
        archive_of(buffer.getvalue())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (42, 2**31, "ends past the end of the file"),  # offset of its local header
        (20, 2**31, "contradicts itself"),  # only the compressed size
        (24, 2**31, "contradicts itself"),  # only the size
        (0, 0, "is invalid"),  # its magic
        (34, 1, "contradicts itself"),  # disk
        (32, 65535, "is invalid"),  # length of its comment
        (42, 2**32 - 1, "no zip64 sizes"),
    ],
)
def test_an_inconsistent_directory_is_refused(field, value, message):
    content = holding({})
    size = 2 if field in (32, 34) else 4
    with pytest.raises(CorruptCheckpointError, match=message):
        archive_of(patched(content, central(content, "archive/data/0") + field, value, size=size))


def test_sizes_that_leave_the_file_are_refused():
    content = holding({})
    at = central(content, "archive/data/0")
    with pytest.raises(CorruptCheckpointError, match="ends past the end of the file"):
        archive_of(patched(patched(content, at + 20, 2**31), at + 24, 2**31))


@pytest.mark.parametrize(
    ("back", "value", "size", "error", "message"),
    [
        (10, 2**31, 4, CorruptCheckpointError, "its directory should be"),  # size of the directory
        (6, 2**31, 4, CorruptCheckpointError, "its directory should be"),  # its offset
        (6, 0, 4, CorruptCheckpointError, "its directory should be"),
        (12, 1, 2, UnsupportedFormatError, "split over several files"),  # total entries, but not those on this disk
        (18, 1, 2, UnsupportedFormatError, "split over several files"),  # disk
        (2, 7, 2, NoArchiveError, "not a zip archive"),  # a missing comment
    ],
)
def test_an_inconsistent_end_record_is_refused(back, value, size, error, message):
    content = holding({})
    with pytest.raises(error, match=message):
        archive_of(patched(content, len(content) - back, value, size=size))


def test_a_wrong_count_of_entries_is_refused():
    content = holding({})
    at = len(content) - 14
    with pytest.raises(CorruptCheckpointError, match=r"has 3 entries, but its end record says 65,000"):
        archive_of(patched(patched(content, at, 65_000, size=2), at + 2, 65_000, size=2))


def test_a_directory_as_large_as_the_file_is_not_fetched():
    """The end record claims a directory of 3 GiB; none of it is read."""
    n_bytes = 3 << 30

    class Huge(MemoryBytes):
        """An archive of gigabytes whose end record claims a directory of the same size."""

        n_bytes = (3 << 30) + 22

        def read(self, start, stop):
            assert stop - start <= 1 << 20
            end = struct.pack("<I4H2IH", 0x06054B50, 0, 0, 9, 9, n_bytes, 0, 0)
            return bytes(max(0, self.n_bytes - 22 - start)) + end

    with pytest.raises(UnsupportedFormatError, match=r"claims 9 entries in a directory of 3,221,225,472 bytes"):
        Archive(Huge("file", b""))


def test_bytes_in_front_of_the_archive_are_refused():
    with pytest.raises(CorruptCheckpointError, match="its directory should be"):
        archive_of(b"#!/bin/sh\n" + holding({}))


def test_a_comment_that_looks_like_an_end_record_is_a_comment():
    content = holding({})
    fake = struct.pack("<I4H2IH", 0x06054B50, 0, 0, 0, 0, 0, 0, 50)
    commented = patched(content, len(content) - 2, len(fake), size=2) + fake
    assert set(archive_of(commented).entries) == set(archive_of(content).entries)


def test_an_inconsistent_local_header_is_refused():
    content = holding({"w": 1})
    archive = archive_of(content)
    start = archive.entries["archive/data.pkl"].header_start
    for at, value, size in ((0, 0, 4), (26, 3, 2), (28, 60_000, 2)):
        with pytest.raises(CorruptCheckpointError, match=r"local header of 'archive/data.pkl' contradicts"):
            source_of(patched(content, start + at, value, size=size)).names()


def test_a_compressed_pickle_is_refused_before_it_is_unpacked():
    bomb = zipped({"archive/data.pkl": bytes(200 << 20)}, compression=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 20
    with pytest.raises(UnsupportedFormatError, match=r"'archive/data.pkl' is compressed or encrypted"):
        source_of(bomb).names()


def test_compressed_weights_are_refused_when_read():
    content = saved({"w": torch.zeros(4000)})
    entries = {name: zipfile.ZipFile(io.BytesIO(content)).read(name) for name in ("archive/data.pkl", "archive/data/0")}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", entries["archive/data.pkl"])
        archive.writestr("archive/data/0", entries["archive/data/0"], zipfile.ZIP_DEFLATED)
    source = source_of(buffer.getvalue())
    assert source.names() == ("w",)
    with pytest.raises(UnsupportedFormatError, match=r"'archive/data/0' is compressed"):
        source.spec("w")


def test_an_encrypted_entry_is_refused():
    content = holding({})
    at = central(content, "archive/data.pkl") + 8
    with pytest.raises(UnsupportedFormatError, match="compressed or encrypted"):
        source_of(patched(content, at, 1, size=2)).names()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "has none"),
        ({"a/x": b""}, "has none"),
        ({"data.pkl": b"N."}, "has none"),
        ({"a/data.pkl": b"N.", "b/data.pkl": b"N."}, "but has 2$"),
        ({"arr_0.npy": b""}, "has none"),
    ],
)
def test_an_archive_that_torch_did_not_write_is_refused(entries, message):
    with pytest.raises(UnsupportedFormatError, match=message):
        source_of(zipped(entries)).names()


def test_a_pickle_too_long_for_any_checkpoint_is_not_read():
    content = with_pickle(bytes(65 << 20))
    tree = MemoryTree({"pytorch_model.bin": content})
    with pytest.raises(UnsupportedFormatError, match=r"has 68,157,440 bytes; the limit is 67,108,864"):
        PytorchSource(tree, paths=["pytorch_model.bin"]).names()
    assert sum(stop - start for start, stop in tree.opened["pytorch_model.bin"].reads) < 100_000


@pytest.mark.parametrize("name", ["byteorder", ".storage_alignment"])
def test_small_entries_that_are_large_are_refused(name):
    content = zipped({"archive/data.pkl": b"N.", f"archive/{name}": bytes(1 << 20)})
    with pytest.raises(CorruptCheckpointError, match="has 1,048,576 bytes"):
        source_of(content).names()


def test_every_truncation_and_flipped_byte_is_refused_or_read():
    """Any change of a small file ends in one of our errors or in tensors, never in another exception."""
    content = saved({"w": torch.arange(6.0), "b": torch.ones(2, 2).t()})

    def attempt(broken):
        source = source_of(broken)
        try:
            for name in source.names():
                source.read(name)
        except CheckpointError:
            pass

    for stop in range(0, len(content), 7):
        attempt(content[:stop])
    for at in range(0, len(content), 2):
        for value in (0, 0x80, 0xFF, content[at] ^ 1):
            attempt(content[:at] + bytes([value]) + content[at + 1 :])
