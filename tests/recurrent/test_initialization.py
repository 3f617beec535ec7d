"""Weights begin the same on every machine for the same seed, and as chapters 4 and 5 say."""

import pytest
import torch

import rnnewton as rn
from rnnewton.recurrent.initialization import is_recurrent
from rnnewton.recurrent.model import RecurrentModel

# The first numbers of three weights for seed 3, as drawn on x86-64 with NumPy 2: a change of them breaks
# every run that is to be repeated from its seed.
GOLDEN = {
    "layers.0.W_mi": [-0.0072042196845550415, -0.04995639868225374, 0.020669967494408092],
    "layers.0.W_mh": [0.014332857644415789, 0.07029879685069462, -0.0023268060090831945],
    "layers.1.W_oh": [-0.15038699546020362, -0.0028240567905520662, -0.06946967717720652],
}


def test_numbers_drawn_are_those_of_every_machine() -> None:
    model = RecurrentModel("mlstm", (3, 2), 5, 5, init=rn.Normal(0.1), seed=3).double()
    drawn = {name: rn.Normal(0.1).draw(name, (3, 2), 3).flatten()[:3].tolist() for name in GOLDEN}
    assert drawn == GOLDEN
    weight = model.get_parameter("layers.0.W_mh").detach().flatten()[:3]
    assert (
        weight.tolist() == torch.tensor(GOLDEN["layers.0.W_mh"]).tolist()
    )  # drawn in float64, kept in float32


def test_a_seed_decides_everything_and_the_global_one_nothing() -> None:
    def weights(seed: int) -> torch.Tensor:
        return RecurrentModel("lstm", (4,), 5, 5, seed=seed)._flat().detach()

    torch.manual_seed(1)
    first = weights(7)
    before = torch.random.get_rng_state()
    assert torch.equal(weights(7), first)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(weights(8), first)


def test_weights_do_not_depend_on_their_neighbours() -> None:
    """A weight is drawn by its name: the first layer of a stack is that of a single layer."""
    one, two = (RecurrentModel("mlstm", hidden, 5, 5, seed=2) for hidden in ((6,), (6, 3)))
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, two.get_parameter(name))


def test_normal_has_the_deviation_asked_for_and_biases_start_at_zero() -> None:
    model = RecurrentModel("rnn", (300,), 50, 50, init=rn.Normal(0.05), seed=1)
    weight = model.get_parameter("layers.0.W_hh")
    assert abs(weight.std() - 0.05) < 1e-3 and abs(weight.mean()) < 1e-3
    assert not model.get_parameter("layers.0.B_h").any()


@pytest.mark.parametrize("cell", ["rnn", "mrnn", "lstm", "mlstm"])
def test_sparse_zeros_nine_tenths_of_the_recurrent_weights_only(cell: str) -> None:
    model = RecurrentModel(cell, (60, 50), 40, 40, init=rn.SparseNormal(0.1), seed=1)
    for name, parameter in model.named_parameters():
        zeros = float((parameter == 0).double().mean())
        if name.split(".")[-1].startswith("B_"):
            assert zeros == 1
        else:
            assert abs(zeros - (0.9 if is_recurrent(name) else 0.0)) < 0.03, name
    kept = model.get_parameter("layers.0.W_mh" if cell[0] == "m" else "layers.0.W_hh")
    assert abs(kept[kept != 0].std() - 0.1) < 0.02


def test_recurrent_weights_are_those_from_the_layer_s_own_past() -> None:
    names = [n.name.split(".")[-1] for n in RecurrentModel("mlstm", (2, 2), 3, 3, bias=True).layout.names]
    past = {name for name in names if is_recurrent(name)}
    assert past == {"W_mh", "W_hm", "W_input_m", "W_forget_m", "W_output_m"}
    names = [n.name.split(".")[-1] for n in RecurrentModel("lstm", (2, 2), 3, 3).layout.names]
    assert {n for n in names if is_recurrent(n)} == {"W_hh", "W_input_h", "W_forget_h", "W_output_h"}


def test_reset_draws_the_same_again() -> None:
    model = RecurrentModel("lstm", (3,), 5, 5, seed=2)
    first = model._flat().detach().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.reset_parameters()
    assert torch.equal(model._flat(), first)


@pytest.mark.parametrize(
    "wrong", [lambda: rn.Normal(-1), lambda: rn.Normal(float("nan")), lambda: rn.SparseNormal(0.1, zero=1.5)]
)
def test_impossible_settings_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"deviation|probability"):
        wrong()  # type: ignore[operator]
