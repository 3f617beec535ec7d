"""Checkpoints: whole or not there, and every altered byte noticed."""

import errno
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnewton.lab import checkpoint
from rnnewton.lab.checkpoint import DamagedCheckpoint, Summary

STATE = {
    "damping": {"mu": 0.1 + 0.2, "lambda": None, "adapted": True},
    "pairs": [torch.arange(6.0).reshape(2, 3).t(), torch.tensor(3, dtype=torch.int64)],
    "generator": torch.Generator().manual_seed(3).get_state(),
    "name": "hf",
}


def write_model(folder: Path) -> None:
    (folder / "model.json").write_text('{"cell": "rnn"}')
    (folder / "weights.safetensors").write_bytes(bytes(range(256)))


def save(folder: Path, step: int = 12) -> Path:
    return checkpoint.save(folder, Summary(step, 2.5, step), write_model, STATE)


def test_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert path.name == "step-000012"
    assert checkpoint.verify(path).summary == Summary(12, 2.5, 12)
    state = checkpoint.read_state(path)
    assert state["damping"] == STATE["damping"]
    assert torch.equal(state["pairs"][0], STATE["pairs"][0]) and torch.equal(
        state["pairs"][1], STATE["pairs"][1]
    )
    assert torch.equal(state["generator"], STATE["generator"])
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_a_matrix_that_lies_by_columns_does_so_again(tmp_path: Path) -> None:
    basis = torch.linalg.eigh(torch.eye(3) + torch.ones(3, 3)).eigenvectors
    assert basis.stride() == (1, 3)
    path = checkpoint.save(tmp_path, Summary(1), write_model, {"basis": basis, "wide": torch.ones(1, 3)})
    state = checkpoint.read_state(path)
    assert torch.equal(state["basis"], basis) and state["basis"].stride() == (1, 3)
    assert state["wide"].shape == (1, 3)


def test_tensors_that_share_memory_are_stored(tmp_path: Path) -> None:
    whole = torch.arange(4.0)
    path = checkpoint.save(tmp_path, Summary(1), write_model, {"a": whole, "b": whole[:2]})
    assert torch.equal(checkpoint.read_state(path)["b"], whole[:2])


def test_what_cannot_be_stored_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"at state\.a: object"):
        checkpoint.save(tmp_path, Summary(1), write_model, {"a": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["model.json", "weights.safetensors", "state.json", "state.safetensors", "checkpoint.json"]
)
@pytest.mark.parametrize("harm", ["truncate", "alter", "remove", "empty"])
def test_every_harm_is_noticed(tmp_path: Path, name: str, harm: str) -> None:
    path = save(tmp_path)
    file = path / name
    content = file.read_bytes()
    if harm == "remove":
        file.unlink()
    elif harm == "alter":
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        file.write_bytes(content[: -1 if harm == "truncate" else 0])
    if (name, harm) == ("checkpoint.json", "truncate"):  # its last byte is the end of the line
        file.write_bytes(content[:-2])
    with pytest.raises(DamagedCheckpoint):
        checkpoint.verify(path)


KEYS = st.sampled_from(["format", "sha256", "files", "step"])
LEAVES = st.none() | st.integers() | st.text(max_size=5) | st.floats()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=8)


@settings(max_examples=40, deadline=None)
@given(content=st.binary(max_size=60) | TREES.map(lambda value: json.dumps(value).encode()))
def test_any_summary_is_read_or_damaged(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("checkpoint")
    (path / "checkpoint.json").write_bytes(content)
    with pytest.raises(DamagedCheckpoint):
        checkpoint.verify(path)


def test_a_failed_write_keeps_the_checkpoint_of_the_same_step(tmp_path: Path) -> None:
    path = save(tmp_path)

    def full(folder: Path) -> None:
        write_model(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, Summary(12), full, STATE)
    assert checkpoint.verify(path).summary.validation_bits == 2.5
    assert [each.name for each in tmp_path.iterdir()] == ["step-000012"]


def test_others_and_strays_are_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / ".writing-step-000004-1").mkdir()
    checkpoint.remove_others(tmp_path, {2, 3})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-000002", "step-000003"]
