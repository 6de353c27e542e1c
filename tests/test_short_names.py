"""The folder that local models share is stated once."""

import pytest

from mdir_hf.names import without_common_folder, without_folder


@pytest.mark.parametrize(
    ("names", "folder", "rest"),
    [
        (["/data/base", "/data/tuned"], "/data", ("base", "tuned")),
        (["/data/a/model", "/data/b/model"], "/data", ("a/model", "b/model")),
        (["/data/base", "/data/base"], None, ("/data/base", "/data/base")),
        (["/data/base", "/data/base/last"], "/data", ("base", "base/last")),
        (["owner/base", "owner/tuned"], None, ("owner/base", "owner/tuned")),
        (["/data/base", "owner/tuned"], None, ("/data/base", "owner/tuned")),
        (["/base", "/tuned"], "/", ("base", "tuned")),
        (["./base", "./runs/tuned"], None, ("./base", "./runs/tuned")),
        (["/data/base"], None, ("/data/base",)),
    ],
)
def test_the_common_folder_is_split_off(names, folder, rest):
    assert without_common_folder(names) == (folder, rest)


def test_a_text_states_the_folder_once():
    text = "/data/base ~ /data/tuned: p ≤ 10⁻⁵⁰"
    assert without_folder(text, ["/data/base", "/data/tuned"]) == "in /data:\nbase ~ tuned: p ≤ 10⁻⁵⁰"
    assert without_folder("a ~ b", ["owner/a", "owner/b"]) == "a ~ b"
