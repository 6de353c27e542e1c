import pytest
import torch

from mdir_hf.checkpoint import open_checkpoint
from mdir_hf.errors import CorruptCheckpointError, NoWeightsError, UnsupportedFormatError
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
def test_the_only_model_is_opened_whatever_lies_beside_it(beside):
    assert opened({"model-Q4_K_M.gguf": ONE} | dict.fromkeys(beside, OTHER)) == 1


@pytest.mark.parametrize("name", ["mmproj-f16.gguf", "imatrix.gguf"])
def test_what_is_not_the_model_is_never_opened_unasked(name):
    with pytest.raises(NoWeightsError, match=name):
        opened({name: ONE})


def test_a_model_whose_name_only_holds_such_a_word_is_one():
    assert opened({"himatrixed-7b.gguf": ONE}) == 1


QUANTISATIONS = {"model-Q4_K_M.gguf": ONE, "model-Q4_K_S.gguf": OTHER, "model-Q8_0.gguf": OTHER}


def test_of_several_quantisations_none_is_preferred():
    with pytest.raises(UnsupportedFormatError, match=r"3 GGUF models.*: model-Q4_K_M, model-Q4_K_S, model-Q8_0; name"):
        opened(QUANTISATIONS)


@pytest.mark.parametrize("file", ["model-Q4_K_M.gguf", "Q4/model.GGUF"])
def test_the_named_file_is_opened(file):
    assert opened({**QUANTISATIONS, "Q4/model.GGUF": ONE}, file=file) == 1


@pytest.mark.parametrize("variant", ["Q4_K_M", "q4_k_m", "K_M"])
def test_a_variant_chooses_the_quantisation(variant):
    assert opened(QUANTISATIONS, variant=variant) == 1


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


def test_a_variant_that_fits_several_or_none_is_said():
    # Q4_K is neither Q4_K_M nor Q4_K_S.
    with pytest.raises(NoWeightsError, match=r"variant 'Q4_K'; without a variant there is model-Q4_K_M.gguf"):
        opened(QUANTISATIONS, variant="Q4_K")
    with pytest.raises(UnsupportedFormatError, match=r"2 GGUF models.*: a-Q8_0, b-Q8_0;"):
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


def test_safetensors_in_the_same_folder_come_first():
    from tests.conformance_tensors import safetensors_bytes

    assert opened({"model.safetensors": safetensors_bytes({"w": torch.ones(1, 1)}), "model.gguf": OTHER}) == 1
