"""The original online learning of LSTM (chapter 2.2): truncated error, one trace per weight, updates while
reading.

The error reaches the past only through the internal state of each cell: dE/dH_out(t) is taken as
dE(t)/dH_out(t), and H_out(t-1) as a constant input. So one number per weight, carried forward, is enough:

    e(t) = phi(t) e(t-1) + dH_state(t)/dtheta(t)        the trace; phi = 1 without forget gates
    dE(t)/dtheta = dE(t)/dH_state(t) e(t)

(The thesis's recursion lacks phi, which forget gates bring.) Output gates and output weights need no trace.

T  steps      B  streams, 1 in the thesis      h  units      V  inputs      O  outputs
G  gates with a trace (h, input[, forget]); S = V + h [+ 1]: the sources I(t), H_out(t-1)[, 1] of a gate
weights (G + 1, h, S), the output gate last; traces (B, G, h, S)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnewton.recurrent.cells.base import HiddenCell, State
from rnnewton.recurrent.kernels import library, supports
from rnnewton.recurrent.kernels.stream import OnlineRule, OnlineWeights, learn_online
from rnnewton.recurrent.layout import LayerLayout
from rnnewton.recurrent.losses import LOSSES
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text.errors import UserError

CELLS = ("lstm", "lstm-original")


class Weights(NamedTuple):
    """The network's weights, or their gradient."""

    gates: Tensor  # (G + 1, h, S), the output gate last
    readout: Tensor  # (O, h)
    output_bias: Tensor | None  # (O,)


class Step(NamedTuple):
    """What one step forward leaves behind."""

    source: Tensor  # (B, S)
    slopes: Tensor  # (B, G, h) dH_state(t) / d(pre-activation)
    phi: Tensor | None  # (B, h)
    out: Tensor  # (B, h)
    cell: Tensor  # (B, h)
    rho: Tensor  # (B, h)
    z: Tensor  # (B, O)


@dataclass
class OnlineLearner:
    """Learns while it reads. One object per run: the traces live here, as the state does with the caller."""

    model: RecurrentModel
    rate: float
    clip: float = 0.0  # largest norm of one update's gradient; 0: no clipping

    def __post_init__(self) -> None:
        kind = self.model.architecture
        if kind.cell not in CELLS or kind.depth != 1:
            raise UserError(
                f"lstm-online trains one layer of {' or '.join(CELLS)}, not {kind.depth} of {kind.cell}:"
                " choose another"
                " --optimizer or --cell"
            )
        self.traces: Tensor | None = None

    def read(
        self, inputs: Tensor, targets: Tensor, state: list[State] | None = None, at: str = "every"
    ) -> tuple[float, list[State]]:
        """Reads (T, B) ids or (T, B, V) numbers and updates the weights at every scored step.

        Returns the sum of the loss over the scored positions, each at the weights before its update, and the
        state to go on from; no state begins a new stream, with traces of zero.
        """
        with torch.no_grad():
            weights = self._take()
            native = self._native(weights, inputs)
            if native is not None:
                total, state = self._run_native(native, weights, (inputs, targets), state, at)
            else:
                total, _, state = self._run(weights, inputs, targets, state, at, update=True)
            self._put(weights)
        return total, state

    def _native(self, weights: Weights, inputs: Tensor) -> Any:
        """The native library where it can do this: one stream, float32, on the processor."""
        if inputs.shape[1] != 1 or supports(self.model.architecture, weights.gates):
            return None
        return library()

    def _run_native(
        self,
        native: Any,
        weights: Weights,
        signal: tuple[Tensor, Tensor],
        state: list[State] | None,
        at: str,
    ) -> tuple[float, list[State]]:
        if state is None:
            state, self.traces = self.model.zero_state(1), None
        now = HiddenCell(*(x.clone() for x in state[0]))
        if self.traces is None:
            traced, units, sources = weights.gates.shape
            self.traces = weights.gates.new_zeros(1, traced - 1, units, sources)
        changed = OnlineWeights(*weights, self.traces[0], now.out[0], now.cell[0])
        rule = OnlineRule(self.rate, self.clip, at == "last")
        columns = signal[0][:, 0], signal[1][:, 0]
        return learn_online(native, self.model.architecture, changed, columns, rule), [now]

    def gradient(self, inputs: Tensor, targets: Tensor, at: str = "every") -> tuple[float, Weights]:
        """The loss and the truncated gradient, both summed over scored positions, at weights that stay as
        they are."""
        with torch.no_grad():
            kept, self.traces = self.traces, None
            total, gradient, _ = self._run(self._take(), inputs, targets, None, at, update=False)
            self.traces = kept
        return total, gradient

    def state_dict(self) -> dict[str, Tensor]:
        """The traces."""
        return {} if self.traces is None else {"traces": self.traces}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues where `state_dict` was taken."""
        self.traces = state["traces"].clone() if "traces" in state else None

    def _run(
        self,
        weights: Weights,
        inputs: Tensor,
        targets: Tensor,
        state: list[State] | None,
        at: str,
        update: bool,
    ) -> tuple[float, Weights, list[State]]:
        width = inputs.shape[1]
        if state is None:
            state, self.traces = self.model.zero_state(width), None
        now = state[0]
        assert isinstance(now, HiddenCell)
        if self.traces is None:
            traced, units, sources = weights.gates.shape
            self.traces = weights.gates.new_zeros(width, traced - 1, units, sources)
        loss = LOSSES[self.model.architecture.loss]
        total = weights.readout.new_zeros((), dtype=torch.float64)
        sums = Weights(*(None if w is None else torch.zeros_like(w) for w in weights))  # pyright: ignore[reportArgumentType]
        for t in range(len(inputs)):
            step = self._forward(weights, inputs[t], now)
            self._trace(step)
            now = HiddenCell(step.out, step.cell)
            if at == "last" and t < len(inputs) - 1:
                continue
            target = targets[t][None]
            total += loss.value(step.z[None], target, None)
            d_z = loss.derivative(loss.prediction(step.z[None]), target, None)[0]
            gradient = self._gradient(weights, step, d_z)
            if update:
                self._update(weights, gradient, width)
            else:
                _add(sums, gradient)
        return float(total), sums, [now]

    def _forward(self, weights: Weights, signal: Tensor, before: HiddenCell) -> Step:
        architecture = self.model.architecture
        if architecture.categorical:
            signal = torch.nn.functional.one_hot(signal, architecture.input_size).to(before.out.dtype)
        parts = [signal, before.out]
        if weights.gates.shape[-1] > signal.shape[-1] + before.out.shape[-1]:
            parts.append(signal.new_ones(len(signal), 1))
        source = torch.cat(parts, -1)
        gates = (source @ weights.gates.flatten(0, 1).T).unflatten(-1, weights.gates.shape[:2])
        h_in, *soft = gates.unbind(1)
        omega, *middle, rho = (torch.sigmoid(gate) for gate in soft)
        phi = middle[0] if middle else None
        slope_in = omega
        if architecture.squash_input:
            h_in = torch.tanh(h_in)
            slope_in = omega * (1 - h_in * h_in)
        cell = omega * h_in + (before.cell if phi is None else phi * before.cell)
        slopes = [slope_in, h_in * omega * (1 - omega)]
        if phi is not None:
            slopes.append(before.cell * phi * (1 - phi))
        out = torch.tanh(cell * rho)
        z = out @ weights.readout.T
        if weights.output_bias is not None:
            z = z + weights.output_bias
        return Step(source, torch.stack(slopes, 1), phi, out, cell, rho, z)

    def _trace(self, step: Step) -> None:
        """e <- phi e + dH_state/dtheta."""
        assert self.traces is not None
        if step.phi is not None:
            self.traces.mul_(step.phi[:, None, :, None])
        self.traces.addcmul_(step.slopes[..., None], step.source[:, None, None, :])

    def _gradient(self, weights: Weights, step: Step, d_z: Tensor) -> Weights:
        """dE(t)/dtheta of this step's error, summed over the streams."""
        assert self.traces is not None
        d_zeta = (d_z @ weights.readout) * (1 - step.out * step.out)
        d_cell = d_zeta * step.rho
        d_rho = d_zeta * step.cell * step.rho * (1 - step.rho)
        gates = torch.empty_like(weights.gates)
        torch.mul(d_cell[0, None, :, None], self.traces[0], out=gates[:-1])
        for deltas, traces in zip(d_cell[1:], self.traces[1:]):  # stream by stream: no copy of all traces
            gates[:-1].addcmul_(deltas[None, :, None], traces)
        torch.mm(d_rho.T, step.source, out=gates[-1])
        bias = None if weights.output_bias is None else d_z.sum(0)
        return Weights(gates, d_z.T @ step.out, bias)

    def _update(self, weights: Weights, gradient: Weights, width: int) -> None:
        parts = [part for part in gradient if part is not None]
        scale = torch.full_like(parts[0][0, 0, 0], self.rate / width)
        if self.clip:
            norm = (
                torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
                / width
            )
            scale = scale * (self.clip / norm).clamp(max=1.0)
        for weight, part in zip(weights, gradient):
            if weight is not None and part is not None:
                weight.addcmul_(part, scale, value=-1.0)

    def _take(self) -> Weights:
        """The model's weights, gates beside gates."""
        layer, flat = (
            self._layer(),
            torch.cat([weight.detach().flatten() for weight in self._parameters()]),
        )
        units = self.model.hidden[0]
        sides = [layer.inputs, layer.recurrent, *([layer.bias] if layer.bias else [])]
        gates = torch.cat([side.of(flat).unflatten(0, (-1, units)) for side in sides], -1)
        bias = self.model.layout.output_bias
        assert layer.readout is not None
        return Weights(gates, layer.readout.of(flat), None if bias is None else bias.of(flat).flatten())

    def _put(self, weights: Weights) -> None:
        """Writes the weights back into the model."""
        flat = self.flat(weights)
        start = 0
        for weight in self._parameters():
            weight.copy_(flat[start : start + weight.numel()].view_as(weight))
            start += weight.numel()

    def flat(self, weights: Weights) -> Tensor:
        """Weights, or a gradient, as one vector in parameter order."""
        layer = self._layer()
        flat = weights.gates.new_empty(self.model.layout.size)
        start = 0
        for side in (layer.inputs, layer.recurrent, layer.bias):
            if side is not None:
                side.of(flat).copy_(weights.gates[..., start : start + side.columns].flatten(0, 1))
                start += side.columns
        assert layer.readout is not None
        layer.readout.of(flat).copy_(weights.readout)
        bias = self.model.layout.output_bias
        if bias is not None and weights.output_bias is not None:
            bias.of(flat).copy_(weights.output_bias[:, None])
        return flat

    def _parameters(self) -> list[Tensor]:
        return [self.model.get_parameter(named.name) for named in self.model.layout.names]

    def _layer(self) -> LayerLayout:
        return self.model.layout.layers[0]


def _add(sums: Weights, gradient: Weights) -> None:
    for total, part in zip(sums, gradient):
        if total is not None and part is not None:
            total.add_(part)
