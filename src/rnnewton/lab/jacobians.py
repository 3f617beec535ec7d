"""How far back a trained model's state reaches: the norm of dh(t)/dh(t-n) over n (chapter 2.1's product of
Jacobians).

h is all that a layer hands to its next step: H_out, and H_state of a gated cell. A layer's h(t) depends on
its own h(t-n) through itself alone, so that each layer has a curve of its own.

N  longest lag      P  places in the text      d  numbers of one layer's state
Column k of a place pulls unit vector k back through time; d columns make the Jacobian exact (d x d).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnewton.recurrent.cells.base import State
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text.alphabet import Ids
from rnnewton.text.errors import UserError


@dataclass(frozen=True)
class JacobianSettings:
    """Where and how far back to look."""

    lags: int = 100  # N
    places: int = 4  # P
    context: int = 100  # symbols that are read before, so that states are those of a text
    columns: int = 256  # at most; a larger state takes random ones, and the root mean square alone
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.lags, self.places, self.columns) < 1 or self.context < 0:
            raise UserError("the Jacobians need at least 1 lag, 1 place and 1 column")


@dataclass(frozen=True)
class Jacobians:
    """Per layer and lag n = 0 .. N, the mean over places (of logarithms)."""

    root_mean_square: NDArray[np.float64]  # (layers, N + 1): |J|_F / sqrt(d); 1 at n = 0
    largest: NDArray[np.float64]  # (layers, N + 1): largest singular value; nan if not exact
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "root_mean_square": self.root_mean_square.tolist(),
            "largest": self.largest.tolist() if self.exact else None,
            "exact": self.exact,
        }


def jacobians(model: RecurrentModel, ids: Ids, settings: JacobianSettings) -> Jacobians:
    """Measures at random places of a text; symbols only."""
    needed = settings.context + settings.lags
    if len(ids) < needed + 1:
        raise UserError(
            f"the text has {len(ids)} symbols and the Jacobians over {settings.lags} steps need"
            f" {needed + 1}: take fewer"
        )
    generator = np.random.default_rng(settings.seed)
    starts = generator.integers(0, len(ids) - needed, settings.places)
    window = np.asarray(ids[starts + np.arange(needed)[:, None]], dtype=np.int64)  # (context + N, P)
    device = next(model.parameters()).device
    signal = torch.from_numpy(window).to(device)
    measured = [_of_layer(model, signal, layer, settings) for layer in range(len(model.hidden))]
    exact = all(largest is not None for _, largest in measured)
    rms = np.stack([rms for rms, _ in measured])
    largest = [np.full_like(rms[0], np.nan) if each is None else each for _, each in measured]
    return Jacobians(rms, np.stack(largest), exact)


def _of_layer(
    model: RecurrentModel, signal: Tensor, layer: int, settings: JacobianSettings
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """(N + 1,) root mean squares and largest singular values of one layer, geometric means over the
    places."""
    with torch.no_grad():
        state = model.zero_state(settings.places)
        if settings.context:
            _, state = model(signal[: settings.context], state)
    size = sum(part.shape[-1] for part in state[layer])
    columns = min(size, settings.columns)
    wide = [type(each)(*(x.repeat_interleave(columns, 0) for x in each)) for each in state]
    inputs = signal[settings.context :].repeat_interleave(columns, 1)
    pulled = _pulled(model, inputs, wide, layer, _columns(size, columns, settings, state[layer].out))
    matrices = pulled.reshape(len(pulled), settings.places, columns, size).double()
    rms = (matrices.square().sum((-1, -2)) / columns).sqrt()  # (N + 1, P)
    largest = torch.linalg.matrix_norm(matrices, ord=2) if columns == size else None
    return _geometric(rms), None if largest is None else _geometric(largest)


def _columns(size: int, columns: int, settings: JacobianSettings, like: Tensor) -> Tensor:
    """(columns, d): all unit vectors, or random directions whose pulled-back squares have the right mean."""
    if columns == size:
        return torch.eye(size, dtype=like.dtype, device=like.device)
    drawn = np.random.default_rng((settings.seed, 1)).standard_normal((columns, size))
    return torch.from_numpy(drawn).to(like) / size**0.5


def _pulled(model: RecurrentModel, inputs: Tensor, state: list[State], layer: int, rows: Tensor) -> Tensor:
    """(N + 1, P·columns, d): each row of the Jacobian at lag n, by one pass back through time."""
    points: list[State] = []
    with torch.enable_grad():
        now = [type(each)(*(x.detach().requires_grad_() for x in each)) for each in state]
        points.append(now[layer])
        for step in inputs:
            _, now = model(step[None], now)
            points.append(now[layer])
        cotangents = rows.repeat(len(points[-1].out) // len(rows), 1)
        flat = [x for point in points for x in point]
        sizes = [part.shape[-1] for part in points[-1]]
        ends = list(cotangents.split(sizes, -1))
        parts = torch.autograd.grad(points[-1], flat, ends, materialize_grads=True)
    each = len(sizes)
    back = [torch.cat(parts[i : i + each], -1) for i in range(0, len(parts), each)]
    return torch.stack(back[::-1]).detach()


def _geometric(values: Tensor) -> NDArray[np.float64]:
    """The mean over places (the last dimension) of logarithms; an exact zero stays zero."""
    return values.log().mean(-1).exp().cpu().numpy()


def figure(result: Jacobians, path: Path) -> None:
    """A curve per layer."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7, 4), layout="constrained")
    axes = drawn.subplots()
    for layer, (rms, largest) in enumerate(zip(result.root_mean_square, result.largest)):
        (line,) = axes.semilogy(rms, label=f"layer {layer}, root mean square")
        if result.exact:
            axes.semilogy(largest, color=line.get_color(), linestyle="--", label=f"layer {layer}, largest")
    axes.set_xlabel("n")
    axes.set_ylabel("norm of dh(t) / dh(t-n)")
    axes.legend()
    drawn.savefig(path)
