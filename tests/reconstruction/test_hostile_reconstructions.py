"""A forged reconstruction is refused by name before it is used, and nothing that is not finite is written."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf.errors import ReconstructionError
from mdir_hf.reconstruction.reconstruct import fit_reconstruction
from mdir_hf.reconstruction.storage import ARRAYS, INDEX, load_reconstruction, save_reconstruction
from mdir_hf.reconstruction.write import write_model
from tests.method.obfuscation import new_model, obfuscate
from tests.reconstruction.models import opened, saved


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model, a hidden copy, and their reconstruction, which is also saved."""
    folder = tmp_path_factory.mktemp("pair")
    base = new_model("llama")
    saved(base, folder / "base")
    saved(obfuscate(base, residual_scale=1.0)[0], folder / "hidden")
    found = fit_reconstruction(opened(folder / "base"), opened(folder / "hidden"))
    save_reconstruction(found, folder / "kept", full_rotation=True)
    return folder, found


def forged(pair, folder, *, index=None, array=None):
    """Save the reconstruction with a changed index, or with a changed array."""
    shutil.copytree(pair[0] / "kept", folder)
    content, arrays = json.loads((folder / INDEX).read_text()), load_file(folder / ARRAYS)
    if index is not None:
        *path, last, value = index
        place = content
        for key in path:
            place = place[key]
        place[last] = value
    if array is not None:
        name, change = array
        arrays[name] = change(arrays[name].clone())
    (folder / INDEX).write_text(json.dumps(content))
    save_file(arrays, folder / ARRAYS)
    return folder


def put(value, *place):
    def change(values):
        values[place] = value
        return values

    return change


INDEXES = {
    "a scale of 0": (("stream", "scale", 0.0), "stream.scale is 0.0"),
    "a negative scale": (("stream", "scale", -1.0), "stream.scale is -1.0"),
    "no number": (("stream", "scale", float("nan")), "stream.scale is nan"),
    "no finite number": (("residuals", "embedding", float("inf")), r"residuals\.embedding is inf"),
    "no kind": (("stream", "kind", "mirror"), "kind is 'mirror'"),
    "another width": (("stream", "n_candidate", 63), "rotation"),
    "a width beyond 64 bits": (("stream", "n_candidate", 10**30), "n_candidate"),
    "more neurons than memory": (("layers", 1, "mlp", "n_neurons", 10**15), "n_neurons"),
    "fewer neurons than are matched": (("layers", 1, "mlp", "n_neurons", 3), r"layers\.1 matches 144 of 3 neurons"),
    "fewer heads than are matched": (("layers", 1, "attention", "n_kv_heads", 2), "matches 4 of 2 heads"),
    "no heads": (("layers", 1, "attention", "n_kv_heads", 0), "n_kv_heads is 0"),
    "heads that cannot share": (("layers", 1, "attention", "n_heads", 9), "9 query heads, which 4 key-value heads"),
    "one layout": (("layers", 1, "attention", "layouts", ["half"]), "layouts"),
    "a layer twice": (("layers", 1, "candidate", 0), "is for layer 0 of the candidate, expected 1"),
    "a layer that is no number": (("layers", 1, "reference", "1"), "reference is '1'"),
    "a norm without a name": (("layers", 1, "gains", "x", {"is_moved": True}), "gains"),
    "a list": (("layers", 1, []), "layers"),
}
VALUES = {
    "NaN in the rotation": ("stream.rotation", put(float("nan"), 1, 1), "NaN or infinity"),
    "a rotation that is none": ("stream.rotation", put(9.0, 1, 1), "differs from an orthogonal matrix by"),
    "half a rotation": ("stream.rotation", lambda values: values[:32].clone(), r"\(32, 64\), expected .* \(64, 64\)"),
    "whole numbers": ("stream.rotation", lambda values: values.long(), "int64"),
    "a gain that is infinite": ("layers.1.mlp_norm.reference", put(float("inf"), 0), "NaN or infinity"),
    "a gain of 0": ("layers.1.mlp_norm.reference", put(0.0, 0), "holds 0, by which"),
    "a scale of 0": ("layers.1.scales", put(0.0, 0), "that are no scales, such as 0"),
    "a scale without an inverse": ("layers.1.scales", put(1e-42, 0), "that are no scales, such as 0"),
    "NaN as a scale": ("layers.1.scales", put(float("nan"), 0), "NaN or infinity"),
    "a neuron twice": ("layers.1.neurons", put(7, 1, slice(0, 2)), "expected none twice"),
    "a neuron outside": ("layers.1.neurons", put(144, 1, 0), "expected numbers from 0 to 143"),
    "a neuron below 0": ("layers.1.neurons", put(-1, 0, 0), "expected numbers from 0"),
    "a head outside": ("layers.1.heads.kv", put(4, 1, 0), "expected numbers from 0 to 3"),
    "a query head twice": ("layers.1.heads.q", put(1, 1, slice(0, 2)), "expected none twice"),
    "three models": ("layers.1.heads.q", lambda values: values[[0, 1, 1]].clone(), r"\(3, 8\), expected"),
    "a singular matrix": ("layers.1.values", put(0.0, 1), "matrix of condition nan, expected at most"),
    "matrices that are not square": (
        "layers.1.values",
        lambda values: values[:, :4].clone(),
        r"expected .* \(4, 4, 4\)",
    ),
    "one head less": ("layers.1.keys", lambda values: values[:3].clone(), r"expected .* \(4, any, any\)"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_forged_index_is_refused_by_name(pair, tmp_path, name):
    index, message = INDEXES[name]
    folder = forged(pair, tmp_path / "forged", index=index)
    with pytest.raises(ReconstructionError, match=message) as refused:
        load_reconstruction(folder)
    assert str(refused.value).startswith(f"{folder / INDEX}: ")
    assert "save it again with `mdir-hf align`" in str(refused.value)


@pytest.mark.parametrize("name", VALUES)
def test_a_forged_array_is_refused_by_name(pair, tmp_path, name):
    array, change, message = VALUES[name]
    folder = forged(pair, tmp_path / "forged", array=(array, change))
    with pytest.raises(ReconstructionError, match=message) as refused:
        load_reconstruction(folder)
    assert str(refused.value).startswith(str(folder)) and f"'{array}'" in str(refused.value)


def test_arrays_other_than_those_of_the_index_are_refused(pair, tmp_path):
    folder = forged(pair, tmp_path / "forged")
    arrays = load_file(folder / ARRAYS)
    save_file({**arrays, "x": arrays["layers.1.scales"].clone()}, folder / ARRAYS)
    with pytest.raises(ReconstructionError, match="the array 'x' belongs to nothing in it"):
        load_reconstruction(folder)
    del arrays["layers.1.scales"]
    save_file(arrays, folder / ARRAYS)
    with pytest.raises(ReconstructionError, match=r"there is no array 'layers\.1\.scales'"):
        load_reconstruction(folder)


TEXTS = {
    "nested without end": b'{"schema": ' + b"[" * 100_000,
    "a long number": b'{"schema": ' + b"1" * 100_000 + b"}",
    "no text": b"\xff\xfe",
    "empty": b"",
    "null": b"null",
}


@pytest.mark.parametrize("name", TEXTS)
def test_no_other_exception_escapes(pair, tmp_path, name):
    folder = forged(pair, tmp_path / "forged")
    (folder / INDEX).write_bytes(TEXTS[name])
    with pytest.raises(ReconstructionError):
        load_reconstruction(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", [INDEX, ARRAYS])
def test_files_are_bounded_and_regular(pair, tmp_path, name):
    place = forged(pair, tmp_path / "forged") / name
    place.unlink()
    os.mkfifo(place)  # without a writer: reading it would wait for ever
    with pytest.raises(ReconstructionError, match="is not a regular file"):
        load_reconstruction(place.parent)
    place.unlink()
    place.symlink_to("/dev/zero")
    with pytest.raises(ReconstructionError, match="is not a regular file"):
        load_reconstruction(place.parent)
    place.unlink()
    with place.open("wb") as file:
        file.truncate(9 << 30)  # without taking disk
    with pytest.raises(ReconstructionError, match=r"has 9,663,676,416 bytes; the limit is"):
        load_reconstruction(place.parent)


def test_many_values_are_refused_before_they_are_made(pair, tmp_path):
    """1.4 GB were needed for 60 MB of empty lists."""
    folder = forged(pair, tmp_path / "forged")
    (folder / INDEX).write_bytes(b"[" + b"[]," * (5 << 20) + b"[]]")
    with pytest.raises(ReconstructionError, match=r"has 10,\d{3},\d{3} values; the limit is 2,097,152"):
        load_reconstruction(folder)


def changed_layer(found, position, **changes):
    layers = list(found.layers)
    layers[position] = replace(layers[position], **changes)
    return replace(found, layers=tuple(layers))


def unwritable(found):
    """Yield maps that no fit returns, as the inverse may get them from a caller, and the message."""
    stream, layer = found.stream, found.layers[1]
    holed = stream.outer.matrix.clone()
    holed[3, 3] = float("nan")
    scaled = 1.01 * stream.outer.matrix
    for matrix in (holed, scaled):
        outer = replace(stream.outer, matrix=matrix)
        yield replace(found, stream=replace(stream, outer=outer)), "is not orthogonal"
    yield replace(found, stream=replace(stream, scale=float("nan"))), "scale of its residual stream is nan"
    yield replace(found, stream=replace(stream, scale=0.0)), "scale of its residual stream is 0"
    gains = layer.gains["mlp_norm"]
    bad = replace(gains, reference=torch.full_like(gains.reference, float("nan")))
    yield changed_layer(found, 1, gains={**layer.gains, "mlp_norm": bad}), "layers.1"
    neurons = replace(layer.mlp.neurons, scales=torch.zeros_like(layer.mlp.neurons.scales))
    yield changed_layer(found, 1, mlp=replace(layer.mlp, neurons=neurons)), "layers.1.mlp"
    matrices = torch.zeros_like(layer.attention.values.matrices)
    values = replace(layer.attention.values, matrices=matrices)
    yield changed_layer(found, 1, attention=replace(layer.attention, values=values)), "layers.1.self_attn"
    heads = replace(layer.attention, n_heads=4, n_kv_heads=2)
    yield changed_layer(found, 1, attention=heads), "query and key-value heads in layer 1"
    yield changed_layer(found, 1, mlp=replace(layer.mlp, n_neurons=72)), "144 neurons in layer 1"


@pytest.mark.parametrize("is_inverse", [False, True])
@pytest.mark.parametrize("number", range(9))
def test_no_value_that_is_not_finite_is_written(pair, tmp_path, number, is_inverse):
    folder, found = pair
    changed, message = list(unwritable(found))[number]
    with pytest.raises(ReconstructionError, match=message):
        write_model(opened(folder / "hidden"), changed, tmp_path / "out", is_inverse=is_inverse)
    assert not list((tmp_path / "out").glob("*"))


def test_a_stored_value_that_is_not_finite_is_named(pair, tmp_path):
    folder, found = pair
    shutil.copytree(folder / "hidden", tmp_path / "hidden")
    weights = load_file(tmp_path / "hidden" / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"][5, 5] = float("inf")
    save_file(weights, tmp_path / "hidden" / "model.safetensors")
    with pytest.raises(ReconstructionError, match=r"layers.2.mlp.up_proj.weight.* not finite|there and back"):
        write_model(opened(tmp_path / "hidden"), found, tmp_path / "out")


def test_a_reconstruction_of_another_reference_is_refused(pair, tmp_path):
    folder, found = pair
    saved(new_model("llama", num_hidden_layers=2), tmp_path / "shallow")
    with pytest.raises(ReconstructionError, match=r"it has 2 layers of width 64; .* with a layer 2"):
        write_model(opened(folder / "hidden"), found, tmp_path / "out", reference=opened(tmp_path / "shallow"))


def test_values_that_overflow_in_16_bits_are_not_written(tmp_path):
    base = new_model("llama", dtype=torch.float32)
    saved(base, tmp_path / "base")
    saved(base.half(), tmp_path / "half")
    found = fit_reconstruction(opened(tmp_path / "base"), opened(tmp_path / "half"))
    scaled = replace(found, stream=replace(found.stream, scale=1e-9))
    with pytest.raises(ReconstructionError, match=r"values that are not finite in float16"):
        write_model(opened(tmp_path / "half"), scaled, tmp_path / "out")
