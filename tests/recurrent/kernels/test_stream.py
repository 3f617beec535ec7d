"""One stream in the native library: the same outputs, states and symbols as the model's own."""

import pytest
import torch

import rnnewton as rn
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.cells.base import HiddenCell
from rnnewton.recurrent.kernels import library, open_stream, unavailable
from rnnewton.recurrent.kernels.stream import OnlineRule, OnlineWeights, learn_online

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no native kernels here: {unavailable()}")


@pytest.mark.parametrize("hidden", [(19,), (12, 7)], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_reading_in_pieces_is_reading(cell: str, hidden: tuple[int, ...]) -> None:
    model = rn.RecurrentModel(cell, hidden, 9, 9, init=rn.Normal(0.3))
    truth = rn.RecurrentModel(cell, hidden, 9, 9, init=rn.Normal(0.3)).double()
    ids = torch.randint(0, 9, (100,), generator=torch.Generator().manual_seed(1))
    expected, last = truth(ids[:, None])
    stream = model.stream()
    assert stream is not None
    outputs = torch.cat([stream.read(ids[:60]), stream.read(ids[60:61]), stream.read(ids[61:])])
    assert torch.allclose(outputs.double(), expected[:, 0], atol=1e-5)
    for layer, truth_layer in zip(stream.state, last, strict=True):
        assert all(torch.allclose(x.double(), y, atol=1e-5) for x, y in zip(layer, truth_layer, strict=True))
    before = stream.state
    again = model.stream()
    assert again is not None
    again.state = before
    assert torch.equal(again.read(ids[:5]), stream.read(ids[:5]))


def test_a_block_without_derivatives_is_read_natively_and_the_same() -> None:
    model = rn.RecurrentModel("mlstm", (19,), 9, 9, init=rn.Normal(0.3))
    ids = torch.randint(0, 9, (50, 3), generator=torch.Generator().manual_seed(1))
    start = model(ids)[1]
    with torch.no_grad():
        outputs, state = model(ids, start)
    expected, last = model(ids, start)
    assert torch.allclose(outputs, expected, atol=1e-5)
    assert isinstance(state[0], HiddenCell)
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(state[0], last[0], strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_symbols_are_drawn_as_often_as_the_model_says(temperature: float) -> None:
    model = rn.RecurrentModel("rnn", (4,), 6, 6, init=rn.Normal(0.8))
    stream = model.stream()
    assert stream is not None
    allowed = torch.tensor([True, True, False, True, True, True])
    start = torch.tensor([1])
    logits = stream.read(start)[0].double().masked_fill(~allowed, -torch.inf)
    expected = (logits / temperature).softmax(-1)
    zero = model.zero_state(1)
    counts = torch.zeros(6, dtype=torch.float64)
    levels = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    for level in levels.tolist():
        stream.state = zero
        stream.read(start)
        counts[stream.write(level, allowed, temperature)] += 1
    assert torch.allclose(counts / 2000, expected, atol=1e-3)
    stream.state = zero
    stream.read(start)
    assert stream.write(0.999, allowed, 0.0) == int(logits.argmax())


def test_a_stream_of_vectors_is_left_to_the_eager_path() -> None:
    model = rn.RecurrentModel("rnn", (4,), rn.Real(2), 6)
    assert open_stream(model.architecture, model._flat()) is None


@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("at", ["every", "last"])
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "lstm-original"])
def test_online_learning_is_the_eager_one(cell: str, vectors: bool, at: str, clip: float) -> None:
    from rnnewton.lab.lstm_online import OnlineLearner

    real = {"inputs": rn.Real(3), "outputs": rn.Real(2), "loss": "squared"}
    kind = real if vectors else {"inputs": 6, "outputs": 6}
    options = {"bias": vectors, "output_bias": vectors, "squash_input": vectors, "init": rn.Normal(0.4)}
    model = rn.RecurrentModel(cell, (17,), **kind, **options)
    truth = OnlineLearner(rn.RecurrentModel(cell, (17,), **kind, **options).double(), 0.1, clip)
    generator = torch.Generator().manual_seed(3)
    if vectors:
        inputs, targets = torch.randn(40, 3, generator=generator), torch.randn(40, 2, generator=generator)
    else:
        inputs, targets = torch.randint(6, (2, 40), generator=generator)
    weights = OnlineLearner(model, 0.1, clip)._take()
    traced, units, sources = weights.gates.shape
    changed = OnlineWeights(
        *weights, torch.zeros(traced - 1, units, sources), torch.zeros(units), torch.zeros(units)
    )
    rule = OnlineRule(0.1, clip, at == "last")
    loss = learn_online(library(), model.architecture, changed, (inputs, targets), rule)
    double = inputs.double() if vectors else inputs
    expected, state = truth.read(double[:, None], (targets.double() if vectors else targets)[:, None], at=at)
    assert loss == pytest.approx(expected, rel=1e-5)
    after = truth._take()
    assert truth.traces is not None
    assert torch.allclose(changed.gates.double(), after.gates, atol=1e-5)
    assert torch.allclose(changed.readout.double(), after.readout, atol=1e-5)
    assert torch.allclose(changed.traces.double(), truth.traces[0], atol=1e-4)
    assert torch.allclose(changed.out.double(), state[0].out[0], atol=1e-5)
    if changed.output_bias is not None and after.output_bias is not None:
        assert torch.allclose(changed.output_bias.double(), after.output_bias, atol=1e-5)
