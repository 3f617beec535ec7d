"""The native passes against the eager ones in float64, for every cell and option, and what else they promise.

Legend: T steps, B sequences.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rnnewton.recurrent.architecture import Architecture, Real
from rnnewton.recurrent.blocks import Block, Scored
from rnnewton.recurrent.cells import CELLS, make_cell
from rnnewton.recurrent.cells.base import Hidden, HiddenCell
from rnnewton.recurrent.chunk import Structural
from rnnewton.recurrent.kernels import (
    NativeChunk,
    Way,
    library,
    open_chunk,
    release_memory,
    supports,
    unavailable,
)
from rnnewton.recurrent.layout import layout_of
from rnnewton.recurrent.linearization import Choices, RecurrentLinearization
from rnnewton.recurrent.matrices import Arithmetic

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no native kernels here: {unavailable()}")
SYMBOLS, OUTPUTS = 5, 6


@dataclass(frozen=True)
class Option:
    real_inputs: bool = False
    loss: str = "softmax"
    direct_input: bool = True
    direct_output: bool = True
    bias: bool | None = None
    output_bias: bool = False
    squash: bool = False
    scored: str = "every"
    state: bool = False

    def architecture(self, cell: str, hidden: tuple[int, ...]) -> Architecture:
        inputs = Real(SYMBOLS) if self.real_inputs else SYMBOLS
        outputs = Real(OUTPUTS) if self.loss == "squared" else OUTPUTS
        squash = self.squash and CELLS[cell].gated
        connections = self.direct_input, self.direct_output
        return Architecture(
            cell, hidden, inputs, outputs, self.loss, *connections, self.bias, self.output_bias, squash
        )


OPTIONS = [
    Option(),
    Option(True, "squared", bias=True, output_bias=True, scored="mask", state=True),
    Option(direct_input=False, direct_output=False, bias=True, output_bias=True, scored="last", state=True),
    Option(True, direct_input=False, bias=False, squash=True, scored="mask"),
    Option(loss="squared", direct_output=False, bias=True, squash=True),
]


def block_of(architecture: Architecture, option: Option, steps: int, sequences: int, seed: int) -> Block:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def symbols(count: int) -> Tensor:
        return torch.randint(count, (steps, sequences), generator=generator)

    inputs = normal(steps, sequences, SYMBOLS) if option.real_inputs else symbols(SYMBOLS)
    targets = normal(steps, sequences, OUTPUTS) if option.loss == "squared" else symbols(OUTPUTS)
    mask = normal(steps, sequences) > 0 if option.scored == "mask" else None
    state = None
    if option.state and make_cell(architecture).gated:
        state = [HiddenCell(normal(sequences, h) / 2, normal(sequences, h) / 2) for h in architecture.hidden]
    elif option.state:
        state = [Hidden(normal(sequences, h) / 2) for h in architecture.hidden]
    return Block(inputs, targets, Scored(option.scored == "last", mask, steps), state)


def double(block: Block) -> Block:
    def cast(x: Tensor) -> Tensor:
        return x.double() if x.is_floating_point() else x

    state = block.state and [type(s)(*(x.double() for x in s)) for s in block.state]
    return Block(cast(block.inputs), cast(block.targets), block.scored, state)


def eager(architecture: Architecture, flat: Tensor, block: Block) -> RecurrentLinearization:
    """In float64, and divided by n = 1: plain sums."""
    choices = Choices(arithmetic=Arithmetic(torch.float64))
    return RecurrentLinearization(architecture, flat.double(), [double(block)], 1, choices)


def native(architecture: Architecture, flat: Tensor, block: Block, way: Way) -> NativeChunk:
    chunk, reason = open_chunk(architecture, flat, block, way)
    assert chunk is not None, reason
    return chunk


def off(x: Tensor, truth: Tensor) -> float:
    return float((x.double() - truth).norm() / truth.norm().clamp(min=1e-12))


def weights(architecture: Architecture, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.2 * torch.randn(layout_of(architecture).size, generator=generator)


def penalties(gated: bool) -> list[Structural]:
    plain = [Structural(0.0), Structural(0.3), Structural(0.3, "squared")]
    return [*plain, Structural(0.3, "matching", "cell")] if gated else plain


@pytest.mark.parametrize("precision, tolerance", [("fp32", 2e-5), ("bf16", 4e-2)])
@pytest.mark.parametrize("hidden", [(3,), (37,), (20, 9, 33)], ids=str)
@pytest.mark.parametrize("option", OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize("cell", CELLS)
def test_everything_agrees_with_float64(
    cell: str, option: Option, hidden: tuple[int, ...], precision: str, tolerance: float
) -> None:
    architecture = option.architecture(cell, hidden)
    flat, block = weights(architecture), block_of(architecture, option, 7, 13, seed=1)
    memory = "recomputed" if option.scored == "last" else "stored"
    mine = native(architecture, flat, block, Way(precision, memory))
    truth = eager(architecture, flat, block)
    assert off(mine.loss_sum, truth.loss) < tolerance / 10
    for layer, expected in zip(mine.last, truth.last_states[0], strict=True):
        assert all(off(x, y) < tolerance for x, y in zip(layer, expected, strict=True))
    gradient = torch.zeros_like(flat)
    mine.gradient(gradient)
    assert off(gradient, truth.gradient()) < tolerance
    v = weights(architecture, seed=2)
    for structural in penalties(make_cell(architecture).gated):
        product = torch.zeros_like(flat)
        mine.product(v, product, structural)
        mu, form, tap = structural
        assert off(product, truth.gauss_newton(v.double(), mu, form=form, tap=tap)) < tolerance, structural


def everything(architecture: Architecture, flat: Tensor, block: Block, way: Way) -> tuple[Tensor, ...]:
    chunk = native(architecture, flat, block, way)
    gradient, product = torch.zeros_like(flat), torch.zeros_like(flat)
    chunk.gradient(gradient)
    chunk.product(weights(architecture, seed=5), product, Structural(0.1))
    return chunk.loss_sum, gradient, product, chunk.logits(), *(x for layer in chunk.last for x in layer)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("cell", ["mrnn", "mlstm", "lstm"])
def test_threads_and_memory_never_change_a_bit(cell: str, precision: str) -> None:
    architecture = Option().architecture(cell, (20, 17))
    flat, block = weights(architecture), block_of(architecture, Option(), 11, 150, seed=3)
    first, *others = [
        everything(architecture, flat, block, Way(precision, memory, threads))
        for memory, threads in [("stored", 1), ("stored", 2), ("stored", 3), ("recomputed", 2)]
    ]
    for other in others:
        assert all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


def test_results_are_added_to_what_is_there() -> None:
    architecture = Option().architecture("mlstm", (9,))
    flat, block = weights(architecture), block_of(architecture, Option(), 5, 6, seed=3)
    chunk = native(architecture, flat, block, Way())
    once, twice = torch.zeros_like(flat), torch.zeros_like(flat)
    chunk.gradient(once)
    chunk.gradient(twice)
    chunk.gradient(twice)
    assert torch.allclose(twice, 2 * once, rtol=1e-6, atol=1e-7)


def test_a_budget_chooses_between_storing_and_recomputing() -> None:
    architecture = Option().architecture("mlstm", (40,))
    flat, block = weights(architecture), block_of(architecture, Option(), 50, 200, seed=3)
    stored = native(architecture, flat, block, Way())
    room = stored.stored_bytes + stored.workspace_bytes
    assert native(architecture, flat, block, Way(memory=room)).stored
    less = native(architecture, flat, block, Way(memory=room - 1))
    assert not less.stored
    assert less.workspace_bytes < room
    chunk, reason = open_chunk(architecture, flat, block, Way(memory=1000))
    assert chunk is None
    assert reason is not None and "budget" in reason


def test_memory_that_is_kept_can_be_released() -> None:
    architecture = Option().architecture("mlstm", (9,))
    flat, block = weights(architecture), block_of(architecture, Option(), 5, 6, seed=3)
    before = everything(architecture, flat, block, Way())
    release_memory()
    assert all(
        torch.equal(x, y) for x, y in zip(before, everything(architecture, flat, block, Way()), strict=True)
    )


def test_small_numbers_do_not_slow_or_change_the_callers_arithmetic() -> None:
    architecture = Option().architecture("rnn", (8,))
    flat, block = weights(architecture), block_of(architecture, Option(), 5, 6, seed=3)
    native(architecture, flat, block, Way()).gradient(torch.zeros_like(flat))
    assert float(torch.tensor(1e-40) * 0.5) > 0  # denormals are not flushed outside


def test_long_saturated_sums_stay_finite() -> None:
    architecture = Option().architecture("mlstm", (16,))
    flat, block = 40 * weights(architecture), block_of(architecture, Option(), 30, 6, seed=3)
    chunk = native(architecture, flat, block, Way())
    gradient = torch.zeros_like(flat)
    chunk.gradient(gradient)
    assert torch.isfinite(chunk.loss_sum)
    assert torch.isfinite(gradient).all()
    assert off(chunk.loss_sum, eager(architecture, flat, block).loss) < 1e-4


def test_what_is_not_supported_is_said() -> None:
    architecture = Option().architecture("rnn", (4,))
    flat = weights(architecture)
    assert supports(architecture, flat) is None
    assert "float64" in str(supports(architecture, flat.double()))
    assert "meta" in str(supports(architecture, flat.to("meta")))


def test_wrong_vectors_are_refused() -> None:
    architecture = Option().architecture("rnn", (4,))
    flat, block = weights(architecture), block_of(architecture, Option(), 5, 6, seed=3)
    chunk = native(architecture, flat, block, Way())
    with pytest.raises(ValueError, match="direction"):
        chunk.product(flat.double(), torch.zeros_like(flat))
    with pytest.raises(ValueError, match="contiguous"):
        chunk.gradient(torch.zeros(3))


def test_the_layout_is_the_one_of_the_flat_vector() -> None:
    from rnnewton.recurrent.kernels.chunk import c_architecture

    for cell in CELLS:
        for option in OPTIONS:
            architecture = option.architecture(cell, (20, 9))
            assert library().rn_parameters(c_architecture(architecture)) == layout_of(architecture).size
