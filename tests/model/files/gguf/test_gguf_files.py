import re

import pytest
import torch

from mdir_hf.errors import CorruptCheckpointError, NoWeightsError, UnsupportedFormatError
from mdir_hf.model.files import open_checkpoint
from tests.conformance_tensors import MemoryTree
from tests.gguf_writer import gguf_bytes

ONE, OTHER = (gguf_bytes({"w": torch.full((1, 1), value)}) for value in (1.0, 2.0))


def opened(files, **options):
    return open_checkpoint(MemoryTree(files), **options).read("w").item()


@pytest.mark.parametrize(
    "beside",
    [
        ["mmproj-model-f16.gguf"],
        ["model-mmproj-f16.gguf", "model.imatrix.gguf"],
        ["imatrix_unsloth.gguf", "mtp-model.gguf"],
        ["config.json", "README.md", "Q8_0/model-Q8_0.gguf"],
    ],
)
def test_the_only_model_is_opened_beside_other_files(beside):
    assert opened({"model-Q4_K_M.gguf": ONE} | dict.fromkeys(beside, OTHER)) == 1


@pytest.mark.parametrize("name", ["mmproj-f16.gguf", "imatrix.gguf"])
def test_other_files_than_the_model_are_opened_only_by_name(name):
    with pytest.raises(NoWeightsError, match=name):
        opened({name: ONE})


def test_a_model_whose_name_contains_such_a_word_is_opened():
    assert opened({"himatrixed-7b.gguf": ONE}) == 1


QUANTISATIONS = {"model-Q4_K_M.gguf": ONE, "model-Q4_K_S.gguf": OTHER, "model-Q8_0.gguf": OTHER}


def wide(value, n_columns):
    """A model with this many columns, to control its size."""
    return gguf_bytes({"w": torch.full((1, 1), value), "more": torch.zeros(1, n_columns)})


@pytest.mark.parametrize(
    "names",
    [
        ["model-Q4_K_M.gguf", "model-Q8_0.gguf", "model-BF16.gguf"],
        ["Model.Q2_K.gguf", "model.Q8_0.gguf", "model.f16.gguf"],
        ["model-IQ1_S.gguf", "model-UD-Q4_K_XL.gguf", "model-Q8_0.gguf"],
        ["a-b.i1-IQ2_XXS.gguf", "a-b.i1-Q4_K_M.gguf", "a-b.i1-Q6_K.gguf"],
        ["Q4_0/m-Q4_0.gguf", "Q8_0/m-Q8_0.gguf", "BF16/m-BF16.gguf"],
    ],
)
def test_the_widest_of_several_quantisations_is_read(names):
    files = dict(zip(names, (wide(1.0, 32), wide(2.0, 64), wide(3.0, 96)), strict=True))
    source = open_checkpoint(MemoryTree({**files, "mmproj-F32.gguf": wide(4.0, 999)}))
    assert source.read("w").item() == 3
    (note,) = source.description.notes
    assert note.startswith(f"the repository holds 3 quantisations, and the widest was read, {names[2]};")
    kind = re.search(r"as in owner/name:(\S+)$", note)[1]
    assert open_checkpoint(MemoryTree(files), variant=kind).paths != (names[2],)


def test_parts_of_the_widest_are_read_together():
    files = {"m-Q8_0-00001-of-00001.gguf": wide(2.0, 64), "m-Q4_0.gguf": wide(1.0, 32)}
    assert opened(files) == 2


@pytest.mark.parametrize(
    "names",
    [
        ["a-Q8_0.gguf", "b-Q8_0.gguf"],
        ["a-Q8_0.gguf", "a-tuned.gguf"],
        ["a-7b-Q8_0.gguf", "a-13b-Q8_0.gguf"],
        ["a.gguf", "b.gguf"],
    ],
)
def test_several_models_need_a_name(names):
    with pytest.raises(UnsupportedFormatError, match=r"2 GGUF models.*; name"):
        opened(dict.fromkeys(names, ONE))


@pytest.mark.parametrize("file", ["model-Q4_K_M.gguf", "Q4/model.GGUF"])
def test_the_named_file_is_opened(file):
    assert opened({**QUANTISATIONS, "Q4/model.GGUF": ONE}, file=file) == 1


@pytest.mark.parametrize(
    ("files", "variant"),
    [
        ({"a.Q8_0.gguf": ONE, "a.Q4_0.gguf": OTHER}, "Q8_0"),
        ({"q8_0.gguf": ONE, "q4_0.gguf": OTHER}, "Q8_0"),
        ({"a-Q8_0-00001-of-00001.gguf": ONE, "a-Q4_0.gguf": OTHER}, "Q8_0"),
    ],
)
def test_a_variant_is_found_wherever_the_name_has_it(files, variant):
    assert opened(files, variant=variant) == 1


def test_an_ambiguous_or_missing_variant_is_reported():
    # Q4_K is not a prefix match for Q4_K_M or Q4_K_S.
    with pytest.raises(NoWeightsError, match=r"variant 'Q4_K'; without a variant there is model-Q4_K_M.gguf"):
        opened(QUANTISATIONS, variant="Q4_K")
    with pytest.raises(UnsupportedFormatError, match=r"2 GGUF models.*: a-Q8_0.gguf, b-Q8_0.gguf;"):
        opened({"a-Q8_0.gguf": ONE, "b-Q8_0.gguf": ONE}, variant="Q8_0")


def test_a_long_list_of_quantisations_is_cut():
    files = {f"model-{number}.gguf": ONE for number in range(12)}
    with pytest.raises(UnsupportedFormatError, match=r"12 GGUF models.* and 4 more; name"):
        opened(files)


@pytest.mark.parametrize("there", [[1, 3], [2, 3]])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_split_with_a_part_missing_is_refused(there, is_named):
    files = {f"m-0000{number}-of-00003.gguf": ONE for number in there}
    missing = ({1, 2, 3} - set(there)).pop()
    with pytest.raises(CorruptCheckpointError, match=rf"2 of 3 parts of m-of-00003 .*part {missing} is the first one"):
        opened(files, file=max(files) if is_named else None)
