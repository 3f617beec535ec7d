"""What flows through every weight, natively: what the eager passes say, at true and at drawn targets."""

from typing import Any

import pytest
import torch

import rnnewton as rn
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.kernels import unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no native kernels here: {unavailable()}")

OPTIONS: list[dict[str, Any]] = [
    {},
    {"direct_input": False, "bias": True, "output_bias": True},
    {"direct_output": False, "loss": "squared", "inputs": rn.Real(3), "outputs": rn.Real(2)},
]


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("at", ["every", "last", "mask"])
@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize("cell", CELLS)
def test_traffic_is_the_eager_one(cell: str, options: dict[str, Any], at: str, drawn: bool) -> None:
    model = rn.RecurrentModel(cell, (12, 9), **{"inputs": 7, "outputs": 7, "init": rn.Normal(0.3), **options})
    generator = torch.Generator().manual_seed(2)
    if "loss" in options:
        inputs, targets = (
            torch.randn(11, 13, 3, generator=generator),
            torch.randn(11, 13, 2, generator=generator),
        )
    else:
        inputs, targets = torch.randint(7, (2, 11, 13), generator=generator)
    where: Any = torch.rand(11, 13, generator=generator) < 0.4 if at == "mask" else at
    flows = []
    for kernels in ("native", "eager"):
        point = model.linearize(inputs, targets, at=where, kernels=kernels)
        flows.append(list(point.traffic(torch.Generator().manual_seed(1) if drawn else None)))
    (mine,), (expected,) = flows
    for flow, truth in zip(mine, expected, strict=True):
        assert (flow.name, flow.start, flow.rows, flow.columns) == (
            truth.name,
            truth.start,
            truth.rows,
            truth.columns,
        )
        assert flow.inputs.shape == truth.inputs.shape
        assert flow.inputs.dtype == truth.inputs.dtype
        assert torch.allclose(flow.inputs.float(), truth.inputs.float(), atol=1e-5)
        assert flow.deltas.shape == truth.deltas.shape
        assert torch.allclose(flow.deltas, truth.deltas, atol=2e-5)
