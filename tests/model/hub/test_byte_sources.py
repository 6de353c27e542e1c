import pytest

from mdir_hf.model.hub import LocalFile, open_repository
from tests.conformance_bytes import CONTENT, ByteSourceConformance


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "content"
    place.mkdir()
    (place / "model.safetensors").write_bytes(CONTENT)
    (place / "small.json").write_bytes(CONTENT)  # not LFS: the hub itself sends it
    return place


class TestLocalFile(ByteSourceConformance):
    @pytest.fixture
    def source(self, folder):
        with_file = LocalFile(folder / "model.safetensors")
        yield with_file
        with_file.close()


class TestFileOfALocalRepository(ByteSourceConformance):
    @pytest.fixture
    def source(self, folder):
        return open_repository(folder).open("model.safetensors")


class TestHubFileOnTheCdn(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder):
        loopback_hub.add_repository("owner/name", folder)
        return open_repository("owner/name").open("model.safetensors")


class TestHubFileOnTheHubItself(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder):
        loopback_hub.add_repository("owner/name", folder)
        return open_repository("owner/name").open("small.json")


class TestHubFileWithoutOurCache(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder, monkeypatch):
        monkeypatch.setenv("MDIR_HF_CACHE_MAX_BYTES", "0")
        loopback_hub.add_repository("owner/name", folder)
        return open_repository("owner/name").open("model.safetensors")


class TestDownloadedFile(ByteSourceConformance):
    @pytest.fixture
    def source(self, loopback_hub, folder):
        loopback_hub.add_repository("owner/name", folder)
        repository = open_repository("owner/name")
        repository.read("model.safetensors")
        return repository.open("model.safetensors")
