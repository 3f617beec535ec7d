"""Online LSTM learning against the truncated gradient by brute force."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import rnnewton as rn
from rnnewton.lab.lstm_online import OnlineLearner
from rnnewton.lab.marked_addition import AdditionSettings
from rnnewton.lab.marked_addition import model_for as model_for_addition
from rnnewton.tasks.marked_addition import MarkedAddition
from rnnewton.text.errors import UserError


def model_for(cell: str, real: bool = False, **changes: bool) -> rn.RecurrentModel:
    inputs, outputs, loss = (rn.Real(2), rn.Real(3), "squared") if real else (5, 5, "softmax")
    return rn.RecurrentModel(
        cell=cell,
        hidden=(4,),
        inputs=inputs,
        outputs=outputs,
        loss=loss,
        init=rn.Normal(0.7),
        seed=1,
        **changes,
    ).double()


def truncated_loss(model: rn.RecurrentModel, inputs: Tensor, targets: Tensor, at: str) -> Tensor:
    """The sum of the loss of a network whose H_out(t-1) is a constant wherever it enters a gate: plain
    autograd."""
    weight = dict(model.named_parameters())
    out = cell = torch.zeros(inputs.shape[1], model.hidden[0], dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)

    def gate(name: str, bias: str, signal: Tensor) -> Tensor:
        z = signal @ weight[f"layers.0.{name}i"].T + out.detach() @ weight[f"layers.0.{name}h"].T
        return z + weight[bias] if bias in weight else z

    for t, (signal, target) in enumerate(zip(inputs, targets)):
        if not signal.is_floating_point():
            signal = torch.nn.functional.one_hot(signal, 5).double()
        h_in = gate("W_h", "layers.0.B_h", signal)
        h_in = torch.tanh(h_in) if model.architecture.squash_input else h_in
        omega = gate("W_input_", "layers.0.B_input", signal).sigmoid()
        rho = gate("W_output_", "layers.0.B_output", signal).sigmoid()
        if model.architecture.cell == "lstm":
            cell = gate("W_forget_", "layers.0.B_forget", signal).sigmoid() * cell
        cell = cell + omega * h_in
        out = torch.tanh(cell * rho)
        z = out @ weight["layers.0.W_oh"].T
        if "outputs.B_o" in weight or "B_o" in weight:
            z = z + weight.get("B_o", weight.get("outputs.B_o"))
        if at == "last" and t < len(inputs) - 1:
            continue
        if target.is_floating_point():
            total = total + ((z - target) ** 2).sum() / z.shape[-1]
        else:
            total = total + cross_entropy(z, target, reduction="sum")
    return total


@pytest.mark.parametrize("cell", ["lstm", "lstm-original"])
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("at", ["every", "last"])
@pytest.mark.parametrize("changes", [{}, {"bias": True, "output_bias": True, "squash_input": True}])
def test_the_gradient_is_the_truncated_one(cell: str, real: bool, at: str, changes: dict[str, bool]) -> None:
    model = model_for(cell, real, **changes)
    generator = torch.Generator().manual_seed(0)
    if real:
        inputs = torch.randn(7, 3, 2, generator=generator, dtype=torch.float64)
        targets = torch.randn(7, 3, 3, generator=generator, dtype=torch.float64)
    else:
        inputs, targets = torch.randint(0, 5, (2, 7, 3), generator=generator)
    expected_loss = truncated_loss(model, inputs, targets, at)
    names = [named.name for named in model.layout.names]
    parts = torch.autograd.grad(expected_loss, [model.get_parameter(name) for name in names])
    learner = OnlineLearner(model, rate=0.1)
    loss, gradient = learner.gradient(inputs, targets, at)
    assert loss == pytest.approx(expected_loss.item(), rel=1e-12)
    torch.testing.assert_close(learner.flat(gradient), torch.cat([part.flatten() for part in parts]))
    full = model.linearize(inputs, targets, at=at).gradient() * (3 if at == "last" else 21)
    assert not torch.allclose(learner.flat(gradient), full, rtol=1e-3)  # the truncation is one


@pytest.mark.parametrize("cell", ["lstm", "lstm-original"])
def test_reading_updates_after_each_step_and_carries_its_traces(cell: str) -> None:
    """At a tiny rate the updates add up to the gradient of the whole; cuts between reads change nothing."""
    inputs, targets = torch.randint(0, 5, (2, 12, 2), generator=torch.Generator().manual_seed(3))
    whole, parts = model_for(cell), model_for(cell)
    before = torch.cat([weight.detach().flatten() for weight in whole.parameters()])
    _, gradient = OnlineLearner(whole, 0.0).gradient(inputs, targets)
    learner = OnlineLearner(whole, rate=1e-7)
    expected = before - 1e-7 / 2 * learner.flat(gradient)
    loss, _ = learner.read(inputs, targets)
    found = torch.cat([weight.detach().flatten() for weight in whole.parameters()])
    torch.testing.assert_close((found - before) * 1e7, (expected - before) * 1e7, rtol=1e-4, atol=1e-5)
    learner = OnlineLearner(parts, rate=1e-7)
    first, state = learner.read(inputs[:5], targets[:5])
    other = OnlineLearner(parts, rate=1e-7)
    other.load_state_dict(learner.state_dict())
    second, _ = other.read(inputs[5:], targets[5:], state)
    again = torch.cat([weight.detach().flatten() for weight in parts.parameters()])
    assert first + second == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(again, found, rtol=0, atol=1e-16)


def test_each_step_is_scored_before_it_is_learned() -> None:
    model = model_for("lstm")
    inputs, targets = torch.randint(0, 5, (2, 1, 1), generator=torch.Generator().manual_seed(0))
    expected = float(model.mean_loss(inputs, targets))
    learner = OnlineLearner(model, rate=0.5)
    assert learner.read(inputs, targets)[0] == pytest.approx(expected)
    assert float(model.mean_loss(inputs, targets)) < expected


def test_clipping_bounds_an_update() -> None:
    model = model_for("lstm")
    before = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    inputs, targets = torch.randint(0, 5, (2, 1, 3), generator=torch.Generator().manual_seed(0))
    OnlineLearner(model, rate=1.0, clip=0.01).read(inputs, targets)
    after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.01)


def test_the_traces_neither_vanish_nor_explode_without_forget_gates() -> None:
    """The original cell's traces only add: 200 steps later the first one's share is still there."""
    model = model_for("lstm-original", real=True)
    learner = OnlineLearner(model, rate=0.0)
    inputs, targets = torch.zeros(200, 1, 2).double(), torch.zeros(200, 1, 3).double()
    inputs[0] = 1.0
    _, state = learner.read(inputs[:1], targets[:1])
    assert learner.traces is not None
    first = learner.traces[..., :2].clone()
    learner.read(inputs[1:], targets[1:], state)
    torch.testing.assert_close(learner.traces[..., :2], first)


@pytest.mark.parametrize(("cell", "hidden"), [("rnn", (4,)), ("mlstm", (4,)), ("lstm", (4, 4))])
def test_other_networks_are_refused(cell: str, hidden: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="lstm-online trains one layer"):
        OnlineLearner(rn.RecurrentModel(cell=cell, hidden=hidden, inputs=3, outputs=3), 0.1)


@pytest.mark.slow
def test_a_short_marked_addition_is_learned() -> None:
    """Length 10 in 9,600 sequences, where the mean scores 0.167; LAB_LOG.md has length 20 and 50."""
    settings = AdditionSettings(length=10, cell="lstm-original", optimizer="lstm-online", hidden=8)
    model, task = model_for_addition(settings), MarkedAddition(10)
    learner = OnlineLearner(model, rate=0.5, clip=1.0)
    for index in range(1200):
        inputs, targets, at = task.batch(8, index)
        learner.read(inputs, targets, at=at)
    assert float(model.mean_loss([task.held_out(1000)])) < 0.02
