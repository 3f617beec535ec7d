"""Any shape: one step, one sequence, one unit, one symbol; and what is refused, with where it went wrong."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import rnnewton as rn
from recurrent.support import LAMBDA, MU, far
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.model import RecurrentModel

CELL = some.sampled_from(list(CELLS))
SMALL = some.integers(1, 4)
HIDDEN = some.lists(some.integers(1, 3), min_size=1, max_size=3).map(tuple)
MEMORY = some.one_of(some.sampled_from(["stored", "recomputed"]), some.integers(1, 20_000))


@given(
    CELL,
    HIDDEN,
    some.integers(1, 7),
    SMALL,
    SMALL,
    SMALL,
    MEMORY,
    some.booleans(),
    some.booleans(),
    some.data(),
)
def test_any_shape_of_symbols(
    cell: str,
    hidden: tuple[int, ...],
    steps: int,
    sequences: int,
    inputs: int,
    outputs: int,
    memory: Any,
    direct_input: bool,
    direct_output: bool,
    data: Any,
) -> None:
    model = RecurrentModel(
        cell,
        hidden,
        inputs,
        outputs,
        direct_input=direct_input,
        direct_output=direct_output,
        init=rn.Normal(0.7),
    ).double()
    x = torch.randint(0, inputs, (steps, sequences))
    y = torch.randint(0, outputs, (steps, sequences))
    at = data.draw(some.sampled_from(["every", "last", "mask"]))
    if at == "mask":
        at = torch.rand(steps, sequences) < 0.5
        at[0, 0] = True
    compare(model, x, y, at, memory)


@given(CELL, HIDDEN, some.integers(1, 7), SMALL, SMALL, SMALL, MEMORY)
def test_any_shape_of_real_numbers(
    cell: str, hidden: tuple[int, ...], steps: int, sequences: int, inputs: int, outputs: int, memory: Any
) -> None:
    model = RecurrentModel(cell, hidden, rn.Real(inputs), rn.Real(outputs), "squared", init=rn.Normal(0.7))
    x, y = torch.randn(steps, sequences, inputs).double(), torch.randn(steps, sequences, outputs).double()
    compare(model.double(), x, y, "every", memory)


def compare(model: RecurrentModel, x: torch.Tensor, y: torch.Tensor, at: Any, memory: Any) -> None:
    """The passes against the reference loop under plain autograd, and the product's symmetry."""
    lin = model.linearize(x, y, at=at, memory=memory)
    z, _ = model.reference(x)
    where = torch.zeros(x.shape[:2], dtype=torch.bool)
    where[-1] = True
    where = at if isinstance(at, torch.Tensor) else (where if at == "last" else torch.ones_like(where))
    if model.architecture.loss == "softmax":
        loss = torch.nn.functional.cross_entropy(z[where], y[where])
    else:
        loss = torch.nn.functional.mse_loss(z[where], y[where])
    assert lin.count == int(where.sum())
    assert abs(lin.loss - loss) < 1e-12
    gradient = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    assert far(lin.gradient(), torch.cat([part.reshape(-1) for part in gradient])) < 1e-10
    v, w = torch.randn(2, model.layout.size, dtype=torch.float64)
    gv, gw = lin.gauss_newton(v, MU, LAMBDA), lin.gauss_newton(w, MU, LAMBDA)
    assert abs(w @ gv - v @ gw) < 1e-9 * max(1.0, abs(w @ gv))
    assert v @ gv > 0


def model_of(**options: Any) -> RecurrentModel:
    return RecurrentModel("mlstm", (3,), 5, 5, **options)


def test_an_empty_batch_is_refused() -> None:
    model = model_of()
    for shape in ((0, 3), (3, 0), (0, 0)):
        x = torch.zeros(shape, dtype=torch.int64)
        for call, batch in ((model.linearize, (x, x)), (model.mean_loss, (x, x)), (model, (x,))):
            with pytest.raises(ValueError, match="empty"):
                call(*batch)
    with pytest.raises(ValueError, match="empty"):
        model.linearize([])
    x = torch.zeros(3, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="no position is scored"):
        model.linearize(x, x, at=torch.zeros(3, 2, dtype=torch.bool))


@pytest.mark.parametrize("symbol", [5, -1, 2**40])
def test_a_symbol_out_of_range_is_named_with_its_place(symbol: int) -> None:
    model = model_of()
    good = torch.zeros(4, 3, dtype=torch.int64)
    bad = good.clone()
    bad[2, 1] = symbol
    says = f"symbol {symbol} at step 2 of sequence 1, but the model knows symbols 0 to 4"
    for call in (
        lambda: model.linearize(bad, good),
        lambda: model.mean_loss(bad, good),
        lambda: model(bad),
        lambda: model.reference(bad),
    ):
        with pytest.raises(ValueError, match=f"inputs: {says}"):
            call()
    with pytest.raises(ValueError, match=f"targets: {says}"):
        model.linearize(good, bad)
    with pytest.raises(ValueError, match=f"inputs: {says}"):
        model.linearize([(good, good), (bad, good)])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    model = model_of()
    with torch.no_grad():
        model.get_parameter("layers.0.W_mh")[1, 2] = value
    x = torch.zeros(4, 3, dtype=torch.int64)
    for call in (model.linearize, model.mean_loss):
        with pytest.raises(ValueError, match="a weight is not finite"):
            call(x, x)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (torch.zeros(4, 3), "int64"),
        (torch.zeros(4, 3, dtype=torch.bool), "int64"),
        (torch.zeros(4, dtype=torch.int64), r"shape \(T, B\)"),
        (torch.zeros(4, 3, 2, dtype=torch.int64), r"shape \(T, B\)"),
        ([1, 2, 3], "chunk|tensor|targets"),
        (None, "tensor"),
        (torch.zeros(4, 3, dtype=torch.int64, device="meta"), "are on meta, the model is on cpu"),
    ],
    ids=str,
)
def test_wrong_symbols_are_explained(inputs: Any, says: str) -> None:
    good = torch.zeros(4, 3, dtype=torch.int64)
    with pytest.raises((TypeError, ValueError), match=says):
        model_of().linearize(inputs, good)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (
            torch.zeros(4, 3, 2, dtype=torch.float64),
            "float64 was given, the model's weights are torch.float32",
        ),
        (torch.zeros(4, 3, 2, dtype=torch.int64), "int64 was given"),
        (torch.zeros(4, 3, 7), r"\(T, B, 2\)"),
        (torch.zeros(4, 3), r"\(T, B, 2\)"),
        (torch.zeros(4, 3, 2, device="meta"), "on meta, the model is on cpu"),
    ],
    ids=str,
)
def test_wrong_vectors_are_explained(inputs: Any, says: str) -> None:
    model = RecurrentModel("rnn", (3,), rn.Real(2), rn.Real(2), "squared")
    with pytest.raises((TypeError, ValueError), match=says):
        model.linearize(inputs, torch.zeros(4, 3, 2))


def test_other_arguments_are_checked_too() -> None:
    model, x = model_of(), torch.zeros(4, 3, dtype=torch.int64)
    lin = model.linearize(x, x)
    state = model.zero_state(3)
    wrong: list[tuple[str, Any]] = [
        ("targets are missing", lambda: model.linearize(x)),
        ("targets", lambda: model.linearize(x, x[:2])),
        ("same length", lambda: model.linearize([x], [x, x])),
        ("at=", lambda: model.linearize(x, x, at="first")),
        ("mask|at", lambda: model.linearize(x, x, at=torch.ones(4, 2, dtype=torch.bool))),
        ("mask|at|bool", lambda: model.linearize(x, x, at=torch.ones(4, 3))),
        ("layers", lambda: model.linearize(x, x, state=[*state, *state])),
        ("shape", lambda: model.linearize(x, x, state=model.zero_state(2))),
        ("shape", lambda: model(x, model.zero_state(2))),
        ("float64", lambda: model(x, [type(s)(*(p.double() for p in s)) for s in state])),
        ("precision='fp8'", lambda: model.linearize(x, x, precision="fp8")),
        ("kernels='fast'", lambda: model.linearize(x, x, kernels="fast")),
        ("direction", lambda: lin.gauss_newton(torch.zeros(3))),
        ("direction", lambda: lin.gauss_newton(torch.zeros(model.layout.size, dtype=torch.float64))),
        ("direction", lambda: lin.jvp(torch.zeros(model.layout.size, device="meta"))),
        ("direction", lambda: lin.hessian(torch.zeros(3))),
        ("form='square'", lambda: lin.gauss_newton(torch.zeros(model.layout.size), 0.1, form="square")),
        ("tap='state'", lambda: lin.gauss_newton(torch.zeros(model.layout.size), 0.1, tap="state")),
    ]
    for says, call in wrong:
        with pytest.raises((ValueError, TypeError), match=says):
            call()
    plain = RecurrentModel("rnn", (3,), 5, 5)
    with pytest.raises(ValueError, match="tap='cell' needs a gated cell"):
        plain.linearize(x, x).gauss_newton(torch.zeros(plain.layout.size), 0.1, tap="cell")
