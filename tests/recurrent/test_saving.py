"""What is saved comes back; what is truncated, altered or foreign is refused with a sentence."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import rnnewton as rn
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.recurrent.saving import SavedModelError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    RecurrentModel("mlstm", (3, 2), 5, 5, seed=9).save(tmp_path / "model")
    return tmp_path / "model"


def edit(folder: Path, **values: Any) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_comes_back_as_it_was(cell: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = RecurrentModel(
        cell,
        (3, 2),
        rn.Real(4),
        rn.Real(2),
        "squared",
        direct_input=False,
        direct_output=False,
        bias=True,
        output_bias=True,
        squash_input=CELLS[cell].gated,
        init=rn.SparseNormal(0.2, zero=0.5),
        seed=9,
    ).to(dtype)
    model.save(tmp_path / "a" / "b")
    again = rn.load(tmp_path / "a" / "b")
    assert again.architecture == model.architecture
    assert (again.init, again.seed, again.alphabet) == (model.init, 9, None)
    for (name, one), (other_name, other) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert name == other_name and one.dtype == other.dtype and torch.equal(one, other)
    again.add_layer(2)  # it can go on growing as the first could


def test_saving_again_replaces_and_leaves_nothing_else(saved: Path) -> None:
    other = RecurrentModel("rnn", (2,), 3, 3)
    other.save(saved)
    assert {path.name for path in saved.iterdir()} == {"model.json", "weights.safetensors"}
    assert rn.load(saved).architecture == other.architecture


def test_there_is_no_pickle_in_it(saved: Path) -> None:
    for path in saved.iterdir():
        with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError, IndexError)):
            pickle.loads(path.read_bytes())
    json.loads((saved / "model.json").read_text())


def test_a_bare_run_folder_names_its_best_and_newest(tmp_path: Path) -> None:
    for seed, name in enumerate(("step-000001", "step-000002")):
        RecurrentModel("rnn", (2,), 3, 3, seed=seed).save(tmp_path / "checkpoints" / name)
    index = tmp_path / "checkpoints" / "index.json"
    index.write_text(json.dumps({"best": "step-000001", "newest": "step-000002"}))
    assert (rn.load(tmp_path).seed, rn.load(tmp_path, which="newest").seed) == (0, 1)
    with pytest.raises(ValueError, match="'best' or 'newest'"):
        rn.load(tmp_path, which="worst")
    index.write_text(json.dumps({"best": "step-000009"}))
    for which in ("best", "newest"):
        with pytest.raises(SavedModelError, match=f"no {which} checkpoint"):
            rn.load(tmp_path, which=which)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 40, 200, -1])
def test_truncated_weights_are_refused(saved: Path, keep: int) -> None:
    path = saved / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SavedModelError, match="truncated or altered"):
        rn.load(saved)


@pytest.mark.parametrize("position", [0, 9, 60, -3])
def test_one_flipped_bit_is_noticed(saved: Path, position: int) -> None:
    path = saved / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)
    with pytest.raises(SavedModelError, match="truncated or altered"):
        rn.load(saved)


@pytest.mark.parametrize("keep", [0, 1, 30, 200, -2])
def test_a_truncated_description_is_refused(saved: Path, keep: int) -> None:
    path = saved / "model.json"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SavedModelError, match="cannot be read as JSON"):
        rn.load(saved)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"version": 2}, "format version 2; this rnnewton reads version 1"),
        ({"version": None}, "format version None"),
        ({"format": "something"}, "not a description of an rnnewton model"),
        ({"weights_sha256": "0" * 64}, "truncated or altered"),
        ({"architecture": {"cell": "mlstm"}}, "do not fit the description"),
        ({"architecture": None}, "do not fit the description"),
        ({"architecture": []}, "do not fit the description"),
        ({"init": {"kind": "strange"}}, "do not fit the description"),
        ({"init": {"kind": "normal", "width": 3}}, "do not fit the description"),
        ({"seed": "nine"}, "do not fit the description"),
        ({"alphabet": {"kind": "strange"}}, "do not fit the description"),
    ],
)
def test_altered_descriptions_are_refused(saved: Path, values: dict[str, Any], says: str) -> None:
    edit(saved, **values)
    with pytest.raises(SavedModelError, match=says):
        rn.load(saved)


@pytest.mark.parametrize("change", [{"hidden": [3, 3]}, {"cell": "lstm"}, {"cell": "gru"}, {"extra": 1}])
def test_another_architecture_s_weights_are_refused(saved: Path, change: dict[str, Any]) -> None:
    architecture = json.loads((saved / "model.json").read_text())["architecture"]
    edit(saved, architecture=architecture | change)
    with pytest.raises(SavedModelError, match="do not fit the description"):
        rn.load(saved)


@pytest.mark.parametrize("missing", ["seed", "init", "alphabet", "architecture", "weights_sha256"])
def test_a_description_that_lacks_something_is_refused(saved: Path, missing: str) -> None:
    path = saved / "model.json"
    values = json.loads(path.read_text())
    del values[missing]
    path.write_text(json.dumps(values))
    with pytest.raises(SavedModelError, match=f"lacks {missing}"):
        rn.load(saved)


def test_foreign_places_are_refused(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(SavedModelError, match="not a folder"):
        rn.load(tmp_path / "nowhere")
    with pytest.raises(SavedModelError, match="not a folder"):
        rn.load(saved / "model.json")
    with pytest.raises(SavedModelError, match=r"holds no model\.json"):
        rn.load(tmp_path)
    (saved / "weights.safetensors").unlink()
    with pytest.raises(SavedModelError, match=r"weights\.safetensors is missing"):
        rn.load(saved)
    (saved / "model.json").write_text("[1, 2]")
    with pytest.raises(SavedModelError, match="no JSON object"):
        rn.load(saved)
    (saved / "model.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SavedModelError, match="cannot be read as JSON"):
        rn.load(saved)


def test_a_pickled_file_under_the_right_name_is_refused(saved: Path) -> None:
    torch.save({"layers.0.W_hi": torch.zeros(2)}, saved / "weights.safetensors")
    with pytest.raises(SavedModelError, match="altered"):
        rn.load(saved)
