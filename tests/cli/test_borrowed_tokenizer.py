"""``--tokenizer`` and ``--candidate-tokenizer`` name a vocabulary if a repository ships none."""

import json

from mdir_hf.cli import main
from tests.specimens import gaussian, tokens, write_model

V, N = 1200, 64


def test_a_vocabulary_is_borrowed_from_the_repository_that_is_named(tmp_path, capsys):
    base = write_model(tmp_path / "base", gaussian(V, N, 0))
    turned = gaussian(V, N, 0).flip(0)
    relative = write_model(tmp_path / "relative", turned, words=[])
    other = write_model(tmp_path / "other", gaussian(V, N, 5), words=tokens(V)[::-1])
    assert main(["compare", str(base), str(relative), "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "no_evidence" and any("--tokenizer" in caveat for caveat in report["caveats"])
    options = ["--candidate-tokenizer", str(other), "--json", "--quiet"]
    assert main(["compare", str(base), str(relative), *options]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "embeddings_only"
    options = ["--tokenizer", str(other), "--json", "--quiet"]
    assert main(["compare", str(relative), str(base), *options]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "embeddings_only"


def test_inspect_shows_the_vocabulary_that_is_borrowed(tmp_path, capsys):
    bare = str(write_model(tmp_path / "bare", gaussian(V, N, 0), words=[]))
    lender = str(write_model(tmp_path / "lender", gaussian(V, N, 1)))
    assert main(["inspect", bare, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocabulary"] is None
    assert main(["inspect", bare, "--tokenizer", lender, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vocabulary"]["rows"] == V
    assert found["model"]["tokenizer"] == lender
    assert main(["inspect", bare, "--tokenizer", lender]) == 0
    assert f"vocabulary of {lender}" in " ".join(capsys.readouterr().out.split())


def test_a_name_with_hyphens_is_never_broken(tmp_path, capsys):
    bare = str(write_model(tmp_path / "bare", gaussian(V, N, 0), words=[]))
    for n_hyphens in range(20, 40):  # so that the line would be broken inside the name somewhere
        lender = str(write_model(tmp_path / ("a-" * n_hyphens + "b"), gaussian(V, N, 1)))
        assert main(["inspect", bare, "--tokenizer", lender]) == 0
        assert lender in capsys.readouterr().out
