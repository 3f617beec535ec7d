"""The conformance suite is worth something: with any term of a tangent, an adjoint or a drive wrong, it
fails."""

from functools import cache
from types import FunctionType

import pytest

from recurrent.mutants import functions_of, mutants
from recurrent.support import Case, Expected, discrepancy, expected
from recurrent.test_conformance import TOLERANCE
from rnnewton.recurrent import chunk, losses, network
from rnnewton.recurrent.cells import CELLS, base, factor, lstm, memory, mlstm, mrnn, rnn
from rnnewton.recurrent.passes import adjoint, tangent

# Not derivatives: the forward pass (it has its own test against the thesis), the loss, and what only draws.
FORWARD = {"forward", "factor", "remember", "value", "prediction", "sample"}
TARGETS = [
    function
    for function in [
        *functions_of(rnn, lstm, mrnn, mlstm, factor, memory, tangent, adjoint, losses),
        network.carry,
        network.carry_onto,
        network.back,
        chunk._tap,
        chunk.EagerChunk.product,
        chunk.EagerChunk._curvature,
        base.add_product,
        base.through_tanh,
    ]
    if function.__name__ not in FORWARD
]


@cache
def answers() -> list[Expected]:
    """Two networks a cell: the plainest, and one with everything switched on."""
    everything = {"bias": True, "output_bias": True}
    cases = [Case(cell, (2,), "softmax", steps=4) for cell in CELLS]
    for name, cell in CELLS.items():
        squash = {"squash_input": True} if cell.gated else {}
        for loss, direct, at in (("squared", True, "mask"), ("softmax", False, "last")):
            cases.append(
                Case(name, (2, 3), loss, direct, direct, everything | squash, 4, at=at, carried=True)
            )
    return [expected(case) for case in cases]


def noticed() -> bool:
    """Whether the suite's own check fails."""
    for e in answers():
        try:
            if max(discrepancy(e, memory="recomputed").values()) >= TOLERANCE:
                return True
        except Exception:  # some wrong terms do not even run
            return True
    return False


def test_the_suite_passes_without_a_mutation() -> None:
    assert not noticed()


@pytest.mark.parametrize("function", TARGETS, ids=lambda f: f"{f.__module__.split('.')[-1]}.{f.__qualname__}")
def test_every_wrong_term_is_noticed(function: FunctionType) -> None:
    survivors: list[str] = []
    for mutant in mutants(function):
        with mutant.in_place():
            if not noticed():
                survivors.append(mutant.change)
    assert not survivors, "\n".join(survivors)


def test_there_is_much_to_mutate() -> None:
    terms = {function.__qualname__: len(list(mutants(function))) for function in TARGETS}
    assert terms["remember_adjoint"] >= 12 and terms["remember_tangent"] >= 10
    assert terms["remember_slopes"] >= 12
    assert sum(terms.values()) >= 150, terms
