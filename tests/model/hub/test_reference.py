from pathlib import Path

import pytest

from mdir_hf.errors import InputError, InvalidReferenceError
from mdir_hf.model.hub import Reference, open_repository, parse_reference
from mdir_hf.model.hub.reference import folders_like

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def somewhere_empty(tmp_path, monkeypatch, hf_home):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "repo_id", "revision", "subfolder", "file"),
    [
        ("owner/name", "owner/name", None, "", None),
        (" owner/name ", "owner/name", None, "", None),
        ("owner/name/", "owner/name", None, "", None),
        ("gpt2", "gpt2", None, "", None),
        ("gpt2@e7da7f2", "gpt2", "e7da7f2", "", None),
        ("owner/name@v1.0", "owner/name", "v1.0", "", None),
        ("owner/name@refs/pr/1", "owner/name", "refs/pr/1", "", None),
        ("Owner-1/na.me_2", "Owner-1/na.me_2", None, "", None),
        ("owner/name-gguf.gguf", "owner/name-gguf.gguf", None, "", None),
        ("owner/name/model-Q4_K_M.gguf", "owner/name", None, "", "model-Q4_K_M.gguf"),
        ("owner/name@v1/Q4/model-00001-of-00002.GGUF", "owner/name", "v1", "Q4", "model-00001-of-00002.GGUF"),
        ("https://huggingface.co/owner/name", "owner/name", None, "", None),
        ("https://huggingface.co/owner/name/", "owner/name", None, "", None),
        ("http://huggingface.co/owner/name", "owner/name", None, "", None),
        ("https://hf.co/owner/name?library=transformers#usage", "owner/name", None, "", None),
        ("huggingface.co/owner/name", "owner/name", None, "", None),
        ("https://huggingface.co/gpt2", "gpt2", None, "", None),
        ("https://huggingface.co/gpt2/tree/main", "gpt2", "main", "", None),
        ("https://huggingface.co/models/owner/name", "owner/name", None, "", None),
        ("https://huggingface.co/owner/name/tree/main", "owner/name", "main", "", None),
        ("https://huggingface.co/owner/name/tree/v2/sub/dir/", "owner/name", "v2", "sub/dir", None),
        ("https://huggingface.co/owner/name/tree/refs%2Fpr%2F3", "owner/name", "refs/pr/3", "", None),
        ("https://huggingface.co/owner/name/tree/refs/pr/3/sub", "owner/name", "refs/pr/3", "sub", None),
        (f"https://huggingface.co/owner/name/commit/{SHA}", "owner/name", SHA, "", None),
        ("https://huggingface.co/owner/name/discussions/7", "owner/name", None, "", None),
        ("https://huggingface.co/owner/name/blob/main/README.md", "owner/name", "main", "", None),
        (
            "https://huggingface.co/owner/name/blob/main/model.safetensors",
            *("owner/name", "main", "", "model.safetensors"),
        ),
        (
            "https://huggingface.co/owner/name/resolve/main/unet/x.safetensors?download=true",
            *("owner/name", "main", "unet", "x.safetensors"),
        ),
        ("owner/name/sub", "owner/name", None, "sub", None),
        ("owner/name/sub/dir/", "owner/name", None, "sub/dir", None),
        ("hf://owner/name", "owner/name", None, "", None),
        ("hf://models/owner/name@v2/sub", "owner/name", "v2", "sub", None),
    ],
)
def test_names_of_repositories_on_the_hub(text, repo_id, revision, subfolder, file):
    assert parse_reference(text) == Reference(text.strip(), repo_id, revision, subfolder, file)


@pytest.mark.parametrize(
    ("text", "repo_id", "revision", "variant"),
    [
        ("owner/name:Q4_K_M", "owner/name", None, "Q4_K_M"),
        ("owner/name:q8_0", "owner/name", None, "q8_0"),
        ("owner/name@v1:IQ2_XXS", "owner/name", "v1", "IQ2_XXS"),
        (f"owner/name@{SHA}:Q4_K_M", "owner/name", SHA, "Q4_K_M"),
        ("owner/name@refs/pr/1:BF16", "owner/name", "refs/pr/1", "BF16"),
        ("hf.co/owner/name:Q4_K_M", "owner/name", None, "Q4_K_M"),
        ("https://huggingface.co/owner/name:Q4_K_M", "owner/name", None, "Q4_K_M"),
        (f"hf://models/owner/name@{SHA}:Q4_K_M", "owner/name", SHA, "Q4_K_M"),
        ("hf.co/owner/name:latest", "owner/name", None, None),
        ("gpt2:Q4_0", "gpt2", None, "Q4_0"),
    ],
)
def test_a_quantisation_is_named_as_llama_cpp_and_ollama_name_it(text, repo_id, revision, variant):
    assert parse_reference(text) == Reference(text, repo_id, revision, variant=variant)
    assert parse_reference(text, allow_local=False) == Reference(text, repo_id, revision, variant=variant)


@pytest.mark.parametrize(
    ("text", "revision", "subfolder", "file"),
    [
        ("hf://owner/name@refs/pr/3", "refs/pr/3", "", None),
        ("hf://models/owner/name@refs/pr/3/sub", "refs/pr/3", "sub", None),
        ("hf://owner/name@refs/convert/parquet-v2/sub/model.gguf", "refs/convert/parquet-v2", "sub", "model.gguf"),
        ("owner/name@refs/pr/3/model.gguf", "refs/pr/3", "", "model.gguf"),
        ("hf://owner/name@refs", "refs", "", None),
        ("owner/name@feature%2Ffoo", "feature/foo", "", None),
        ("owner/name@feature%2Ffoo/model.gguf", "feature/foo", "", "model.gguf"),
        ("https://huggingface.co/owner/name/tree/feature%2Ffoo/sub", "feature/foo", "sub", None),
    ],
)
def test_a_revision_with_a_slash_is_one_revision(text, revision, subfolder, file):
    assert parse_reference(text) == Reference(text, "owner/name", revision, subfolder, file)


@pytest.mark.parametrize("base", ["http://127.0.0.1:8123/artifactory/api/hub", "http://127.0.0.1:8123/x/"])
def test_an_address_below_a_mirror_with_a_path_names_the_repository(base, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", base)
    below = base.rstrip("/")
    found = parse_reference(f"{below}/owner/name/resolve/v1/sub/model.safetensors")
    assert (found.repo_id, found.revision, found.subfolder, found.file) == (
        "owner/name",
        "v1",
        "sub",
        "model.safetensors",
    )
    assert parse_reference(below.removeprefix("http://") + "/owner/name").repo_id == "owner/name"
    assert parse_reference("https://huggingface.co/owner/name").repo_id == "owner/name"
    with pytest.raises(InvalidReferenceError, match="not below HF_ENDPOINT"):
        parse_reference("http://127.0.0.1:8123/elsewhere/owner/name")


def test_a_folder_with_a_quantisation_and_a_file_after_the_colon():
    found = parse_reference("owner/name:Q4_K_M/sub")
    assert (found.repo_id, found.subfolder, found.variant) == ("owner/name", "sub", "Q4_K_M")
    found = parse_reference("hf.co/owner/name:model-IQ3_M.gguf")
    assert (found.repo_id, found.file, found.variant) == ("owner/name", "model-IQ3_M.gguf", None)


@pytest.mark.parametrize(
    "text", ["owner/name:", "owner/name:a b", "owner/name:../x", "owner/name:Q4:Q5", "owner:Q4/name", "owner/name:²"]
)
def test_a_suffix_after_a_colon_must_be_a_quantisation(text):
    with pytest.raises(InvalidReferenceError):
        parse_reference(text)


def test_a_folder_with_a_colon_in_its_name_is_that_folder():
    Path("owner", "name:Q4_K_M").mkdir(parents=True)
    assert parse_reference("owner/name:Q4_K_M").folder is not None


def test_an_address_on_the_mirror_that_hf_endpoint_names(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8123/")
    assert parse_reference("http://127.0.0.1:8123/owner/name/tree/v1").repo_id == "owner/name"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a\0b", "empty"),
        ("owner/name@", "nothing follows the @"),
        ("owner//name", "accepted are owner/name, owner/name@revision"),
        ("owner/na me", "accepted are"),
        ("-owner/name", "accepted are"),
        ("owner/na--me", "accepted are"),
        ("owner/..", "accepted are"),
        ("name.", "accepted are"),
        ("x" * 300, "accepted are"),
        ("https://example.com/owner/name", "its host is not the Hub's"),
        ("https://huggingface.co.evil.example/owner/name", "its host is not the Hub's"),
        ("https://huggingface.co@evil.example/owner/name", "its host is not the Hub's"),
        ("ftp://huggingface.co/owner/name", "its host is not the Hub's"),
        ("https://huggingface.co/", "contains no repository"),
        ("https://huggingface.co/docs/hub", "contains no repository"),
        ("https://huggingface.co/datasets/owner/name", "names a dataset, not a model"),
        ("https://huggingface.co/spaces/owner/name", "names a Space, not a model"),
        ("hf://datasets/owner/name", "names a dataset, not a model"),
        ("https://huggingface.co/owner/name/tree/main/../../etc", "leaves the repository"),
        ("https://huggingface.co/owner/name/tree/main/%2e%2e/etc", "leaves the repository"),
        ("./nope", "no such folder"),
        ("/nope", "no such folder"),
        ("~/nope-not-here", "no such folder"),
        ("../nope", "no such folder"),
        ("C:\\models\\nope", "no such folder"),
        ("models\\nope", "no such folder"),
        ("/nope/model.safetensors", "no such file"),
        ("nope.safetensors", "no such file"),
        ("./a/b/nope.gguf", "no such file"),
        ("nope.gguf", "no such file"),
        ("a/b/nope.safetensors.index.json", "no such file"),
    ],
)
def test_text_that_names_no_model_is_refused_with_the_reason(text, why):
    with pytest.raises(InvalidReferenceError, match=why):
        parse_reference(text)


def test_a_refusal_lists_accepted_names():
    with pytest.raises(InvalidReferenceError, match=r"owner/name:Q4_K_M, a Hub URL .*, a local folder, or a local"):
        parse_reference("ftp://nope")


def test_a_reference_that_is_not_text_is_refused():
    with pytest.raises(InvalidReferenceError, match="not int"):
        parse_reference(3)


def test_a_folder_is_local(tmp_path):
    (tmp_path / "m").mkdir()
    assert parse_reference("./m").folder == tmp_path / "m"
    assert parse_reference(tmp_path / "m").folder == tmp_path / "m"


def test_an_existing_folder_wins_over_a_repository_of_the_same_name(tmp_path):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert parse_reference("owner/name").folder == tmp_path / "owner" / "name"


def test_an_existing_file_of_this_name_sends_no_request(tmp_path):
    (tmp_path / "gpt2").write_text("notes")
    with pytest.raises(
        InvalidReferenceError, match=r"gpt2: not a checkpoint: a text file; .* hf://gpt2 names the repo"
    ):
        parse_reference("gpt2")
    assert parse_reference("hf://gpt2").repo_id == "gpt2"
    assert parse_reference("gpt2", allow_local=False).repo_id == "gpt2"


def test_a_path_below_an_existing_folder_sends_no_request(tmp_path):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(InvalidReferenceError, match="no such folder"):
        parse_reference("owner/name/some/checkpoint")
    assert parse_reference("owner/other/checkpoint").repo_id == "owner/other"


def test_a_missing_folder_is_answered_with_the_nearest_one(tmp_path):
    (tmp_path / "models" / "tuned").mkdir(parents=True)
    with pytest.raises(InvalidReferenceError, match=r"did you mean '\./models/tuned'\?$"):
        parse_reference("./models/tunde")
    assert folders_like("models/tunde") == ["models/tuned"]
    assert folders_like("elsewhere/tunde") == []


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "a PNG"),
        (b"%PDF-1.7", "a PDF"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b" <!DOCTYPE html>", "an HTML page"),
        (b'{"verdict": 1}', "a JSON file"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b"", "an empty file"),
        (b"\1\0\2", "a binary file of another kind"),
        ("Größe".encode(), "a text file"),
    ],
)
def test_other_files_than_checkpoints_are_named_in_the_error(content, kind, tmp_path):
    (tmp_path / "x.dat").write_bytes(content)
    with pytest.raises(InvalidReferenceError, match=f"^x.dat: not a checkpoint: {kind}"):
        parse_reference("x.dat")


def test_a_weight_file_names_itself_in_its_folder(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"x")
    parsed = parse_reference("w.safetensors")
    assert (parsed.folder, parsed.file) == (tmp_path, "w.safetensors")


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    assert parse_reference("~/m").folder == tmp_path / "m"


def test_a_path_object_is_never_a_repository():
    with pytest.raises(InvalidReferenceError, match="no such folder"):
        parse_reference(Path("owner/name"))


@pytest.mark.parametrize("text", ["owner/name@v1", "https://huggingface.co/owner/name/tree/v1"])
def test_two_revisions_that_contradict_each_other_are_refused(text):
    with pytest.raises(InputError, match="names revision 'v1', but revision='v2' was passed"):
        open_repository(text, revision="v2")


def test_two_subfolders_that_contradict_each_other_are_refused():
    with pytest.raises(InputError, match="names subfolder 'a', but subfolder='b' was passed"):
        open_repository("https://huggingface.co/owner/name/tree/v1/a", subfolder="b")


def test_an_invalid_endpoint_is_refused(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "huggingface")
    with pytest.raises(InputError, match="HF_ENDPOINT is 'huggingface'"):
        open_repository("owner/name")


@pytest.mark.parametrize("text", ["owner", "owner/name", "owner/model.safetensors", "model.safetensors"])
def test_hub_references_look_at_no_folder(tmp_path, text):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "model.safetensors").touch()
    (tmp_path / "model.safetensors").touch()

    assert parse_reference(text).folder is not None
    assert parse_reference(text, allow_local=False) == Reference(text, repo_id=text)


@pytest.mark.parametrize(
    "there", ["{}", "{}/there", "{}/there.txt", "{}/there.safetensors", "./there", "~", "..\\there"]
)
def test_errors_about_hub_models_name_no_local_path(tmp_path, there):
    (tmp_path / "there").mkdir()
    (tmp_path / "there.txt").touch()
    (tmp_path / "there.safetensors").touch()
    messages = []
    for text in (there.format(tmp_path), there.format("/nowhere"), there.format(tmp_path / "absent")):
        with pytest.raises(InvalidReferenceError) as caught:
            parse_reference(text, allow_local=False)
        messages.append(str(caught.value).replace(repr(text), "it"))

    assert len(set(messages)) == 1
    assert "local folder" not in messages[0]


def test_a_path_object_is_refused_if_only_the_hub_is_allowed(tmp_path):
    with pytest.raises(InvalidReferenceError, match="not allowed here"):
        parse_reference(tmp_path, allow_local=False)
    with pytest.raises(InvalidReferenceError, match="not allowed here"):
        open_repository(tmp_path, allow_local=False)
