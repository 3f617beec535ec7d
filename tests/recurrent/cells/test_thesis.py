"""The forward pass against the thesis: with every weight one constant c, all units of a layer are alike, and
a network is a recurrence of one number per layer, typed here from the thesis's equations.

Legend: c the constant, h units of a layer, I the sum of the inputs (1 for a symbol).
"""

from collections.abc import Callable
from math import exp, tanh
from typing import Any

import pytest
import torch

import rnnewton as rn
from rnnewton.recurrent.model import RecurrentModel

C = 0.37
INPUTS = 3
SIGNALS = [0.4, -1.3, 0.7, 2.1, -0.2, 0.9]  # the sum of I(t) over its components


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def rnn(drive: float, chi: float, h: int, out: float, state: float, squash: bool) -> tuple[float, float]:
    """Chapter 2.1: H(t) = tanh(B_h + W_hi I(t) + W_hh H(t−1))."""
    return tanh(drive + C * h * out), 0.0


def mrnn(drive: float, chi: float, h: int, out: float, state: float, squash: bool) -> tuple[float, float]:
    """Chapter 2.4: H(t) = tanh(B_h + W_hi I(t) + W_hm diag(W_mi I(t)) W_mh H(t−1))."""
    m = chi * (C * h * out)
    return tanh(drive + C * h * m), 0.0


def lstm(drive: float, chi: float, h: int, out: float, state: float, squash: bool) -> tuple[float, float]:
    """Chapter 2.2, "Long short term memory": the cell input is linear, the tanh is outermost."""
    h_in = drive + C * h * out
    omega = phi = rho = sigmoid(h_in)
    if squash:
        h_in = tanh(h_in)
    state = omega * h_in + state * phi
    return tanh(state * rho), state


def lstm_original(
    drive: float, chi: float, h: int, out: float, state: float, squash: bool
) -> tuple[float, float]:
    """Chapter 2.2: H_state(t) = H_state(t−1) + omega ⊙ H_in(t)."""
    h_in = drive + C * h * out
    omega = rho = sigmoid(h_in)
    state = state + omega * (tanh(h_in) if squash else h_in)
    return tanh(state * rho), state


def mlstm(drive: float, chi: float, h: int, out: float, state: float, squash: bool) -> tuple[float, float]:
    """Chapter 4.4: M(t) = (W_mh H_out(t−1)) ⊙ (W_mi I(t)) stands where H_out(t−1) stood."""
    m = (C * h * out) * chi
    h_in = drive + C * h * m
    omega = phi = rho = sigmoid(h_in)
    state = omega * (tanh(h_in) if squash else h_in) + state * phi
    return tanh(state * rho), state


STEPS: dict[str, Callable[..., tuple[float, float]]] = {
    "rnn": rnn,
    "mrnn": mrnn,
    "lstm": lstm,
    "lstm-original": lstm_original,
    "mlstm": mlstm,
}


def recurrence(cell: str, hidden: tuple[int, ...], signals: list[float], **options: bool) -> list[float]:
    """One output of the network at every step. A stack as in chapter 2.3: M_l is driven by I(t) and H_l(t−1);
    H_{l−1}(t) enters the pre-activation, or is the input itself without direct input."""
    outs, states = [0.0] * len(hidden), [0.0] * len(hidden)
    outputs: list[float] = []
    for signal in signals:
        z = C if options["output_bias"] else 0.0
        for layer, h in enumerate(hidden):
            below = C * hidden[layer - 1] * outs[layer - 1] if layer else 0.0
            own_input = C * signal if layer == 0 or options["direct_input"] else below
            drive = own_input + (C if options["bias"] else 0.0)
            if layer and options["direct_input"]:
                drive += below
            outs[layer], states[layer] = STEPS[cell](
                drive, own_input, h, outs[layer], states[layer], options["squash_input"]
            )
            if options["direct_output"] or layer == len(hidden) - 1:
                z += C * h * outs[layer]
        outputs.append(z)
    return outputs


def constant(cell: str, hidden: tuple[int, ...], real: bool, **options: Any) -> RecurrentModel:
    sizes: dict[str, Any] = {"inputs": INPUTS, "outputs": 4}
    if real:
        sizes = {"inputs": rn.Real(INPUTS), "outputs": rn.Real(4), "loss": "squared"}
    model = RecurrentModel(cell, hidden, **sizes, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(C)
    return model


@pytest.mark.parametrize("cell", STEPS)
@pytest.mark.parametrize("hidden", [(1,), (3,), (3, 2), (2, 4, 3)], ids=str)
@pytest.mark.parametrize("direct_input", [True, False])
@pytest.mark.parametrize("direct_output", [True, False])
def test_outputs_are_the_thesis_s_recurrence(
    cell: str, hidden: tuple[int, ...], direct_input: bool, direct_output: bool
) -> None:
    for extra in (False, True) if "lstm" in cell else (False,):
        options = {
            "direct_input": direct_input,
            "direct_output": direct_output,
            "bias": extra or "lstm" not in cell,
            "output_bias": extra,
            "squash_input": extra,
        }
        for real in (False, True):
            signals = SIGNALS if real else [1.0] * len(SIGNALS)
            model = constant(cell, hidden, real, **options)
            inputs = torch.randint(0, INPUTS, (len(SIGNALS), 2))
            if real:
                weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
                inputs = torch.tensor(SIGNALS, dtype=torch.float64).view(-1, 1, 1) * weights
                inputs = inputs.expand(-1, 2, -1)
            want = torch.tensor(recurrence(cell, hidden, signals, **options), dtype=torch.float64)
            for run in (model, model.reference):
                z, _ = run(inputs)
                assert z.shape == (len(SIGNALS), 2, 4)
                assert (z - want.view(-1, 1, 1)).abs().max() < 1e-12


def test_hidden_biases_are_as_the_thesis_counts_them() -> None:
    for cell in STEPS:
        names = [name for name, _ in RecurrentModel(cell, (2,), 3, 3).named_parameters()]
        assert any("B_h" in name for name in names) == (cell in ("rnn", "mrnn"))
        assert not any("B_o" in name for name in names)


COUNTS = [
    ("rnn", (400,), 70, 216_400),
    ("mrnn", (280,), 70, 215_880),
    ("lstm", (195,), 70, 220_350),
    ("mrnn", (150, 130, 110), 70, 219_090),
    ("mlstm", (170,), 70, 215_900),
    ("mlstm", (300,), 85, 603_000),
    ("mlstm", (800,), 85, 3_608_000),
    ("mlstm", (2000,), 99, 21_188_000),
]


@pytest.mark.parametrize(("cell", "hidden", "alphabet", "count"), COUNTS)
def test_parameter_counts_of_the_thesis(
    cell: str, hidden: tuple[int, ...], alphabet: int, count: int
) -> None:
    with torch.device("meta"):
        model = RecurrentModel(cell, hidden, inputs=alphabet, outputs=alphabet)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model.layout.size == count
