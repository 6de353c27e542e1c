"""A survey as a data set: every row has the declared columns, with values of their types."""

import json

import pytest
import yaml

from mdir_hf.lineage.survey.results import ModelResult, PairResult, SurveyReport
from mdir_hf.lineage.survey.saving import dataset_files, is_ours, save_survey
from mdir_hf.report import ModelSummary

PYTHON = {"string": str, "int64": int, "float64": float, "bool": bool}


@pytest.fixture
def report():
    summary = ModelSummary("lab/a", None, "0" * 40, "llama", 64, 2, 100)
    models = {
        "lab/a": ModelResult("lab/a", summary, bytes_read=10, declared_bases=()),
        'lab/b: "quoted"\n': ModelResult('lab/b: "quoted"\n', summary, bytes_read=20, declared_bases=("lab/a",)),
        "lab/c": ModelResult("lab/c", None, error="gated"),
    }
    first, second, _ = models
    pairs = {(first, second): PairResult(first, second, "homologous", None, -50.5, 90, "permutation")}
    return SurveyReport(tuple(models), models, pairs, {"alpha": 1e-10, "version": "0"})


def front_matter(card):
    _, front, body = card.decode().split("---\n", 2)
    return yaml.safe_load(front), body


def test_every_row_has_the_declared_columns_and_types(report):
    files = dataset_files(report)
    front, body = front_matter(files["README.md"])
    assert body.startswith("# Weight ancestry")
    info = {one["config_name"]: one["features"] for one in front["dataset_info"]}
    rows = {}
    for config in front["configs"]:
        features = info[config["config_name"]]
        rows[config["config_name"]] = [json.loads(line) for line in files[config["data_files"]].splitlines()]
        for row in rows[config["config_name"]]:
            assert list(row) == [feature["name"] for feature in features]
            for feature in features:
                value = row[feature["name"]]
                if "list" in feature:
                    assert value is None or all(type(one) is PYTHON[feature["list"]] for one in value)
                else:
                    assert value is None or type(value) is PYTHON[feature["dtype"]]
    assert [row["error"] for row in rows["models"]] == [None, None, "gated"]
    assert [row["group"] for row in rows["models"]] == [0, 0, None]
    (pair,) = rows["pairs"]
    assert (pair["log10_p"], pair["is_declared"], pair["reference_commit"]) == (-50.5, True, "0" * 40)


def test_a_card_of_another_author_is_left_alone(report, tmp_path):
    save_survey(report, tmp_path)
    assert is_ours(tmp_path / "README.md")
    save_survey(report, tmp_path)
    (tmp_path / "README.md").write_text("# My notes\n")
    save_survey(report, tmp_path)
    assert (tmp_path / "README.md").read_text() == "# My notes\n"
    assert (tmp_path / "pairs.jsonl").exists()
