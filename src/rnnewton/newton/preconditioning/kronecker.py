"""A Kronecker-factored preconditioner: second moments of per-sequence gradients in the eigenbasis of A ⊗ B.

Of one weight matrix W (rows, columns; fused gates are one): inputs a_t (columns), deltas d_t (rows) drawn
from the model's own outputs, T time steps, B sequences, n scored positions, p parameters.

    A = mean a aᵀ, B = mean d dᵀ over positions, averaged over outer steps; bases Q, eigenvalues λ
    s = Σ_sequences (Q_Bᵀ (Σ_t d_t a_tᵀ) Q_A)² / n, averaged likewise
    M = Q diag(0.9 s + 0.1 (T B / n) λ_B λ_Aᵀ) Qᵀ, weight by weight

With all positions scored s is a mean over sequences, divided by T.
Summing over t before squaring brings the correlation over time in; λ_B λ_Aᵀ alone would be K-FAC. Rotating
to a new basis keeps the diagonal of M: s becomes R_B² s (R_A²)ᵀ, elementwise squares, R = Q_newᵀ Q_old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rnnewton.newton.preconditioning.base import State, check_kind
from rnnewton.newton.preconditioning.factors import Factor, SymbolFactor, copy
from rnnewton.newton.preconditioning.moments import (
    SLAB_BYTES,
    outer_products,
    sequence_elements,
    sequence_squares,
    slabs,
    symbol_counts,
)
from rnnewton.newton.problem import Linearization, WeightTraffic

SAMPLED_ADJOINT_AND_MOMENTS = 2 / 3 + 1 / 3  # gradients per character


@dataclass(frozen=True)
class KroneckerSettings:
    decay: float = 0.9  # of the averages over outer steps; the first 10 are averaged evenly
    refresh: int = 5  # outer steps between two eigen-decompositions
    refresh_always: int = 3  # the first steps refresh every time
    moments: float = 0.9  # share of s; the rest is λ_B λ_Aᵀ
    floor: float = 0.01  # of mean(M), added in `solve`
    slab_bytes: int = SLAB_BYTES


class _Weight:
    """Where one weight lies in the flat vector, which factors it has, and what is known about it."""

    def __init__(self, place: list[Any], inputs: int, outputs: int) -> None:
        self.place = place
        self.name, self.start, self.rows, self.columns, self.transposed = place
        self.inputs, self.outputs = inputs, outputs  # indices of the preconditioner's factors
        self.moments: Tensor | None = None  # s, (rows, columns)
        self.spectrum: Tensor | None = None  # the diagonal of M in the eigenbasis, (rows, columns)

    def view(self, flat: Tensor) -> Tensor:
        mine = flat[self.start : self.start + self.rows * self.columns]
        return (
            mine.view(self.columns, self.rows).mT if self.transposed else mine.view(self.rows, self.columns)
        )


class Kronecker:
    kind = "kronecker"
    has_metric = True

    def __init__(
        self, settings: KroneckerSettings | None = None, symbol_frequencies: Tensor | None = None
    ) -> None:
        self.settings = settings or KroneckerSettings()
        self.symbol_frequencies = symbol_frequencies
        self.steps = 0
        self._weights: list[_Weight] = []
        self._factors: list[Factor | SymbolFactor] = []
        self._positions: list[float] = []  # of each factor, per scored position
        self._mean = 0.0

    # -- learning ------------------------------------------------------------------------------------------

    def update(self, linearization: Linearization, generator: torch.Generator | None) -> float:
        """One sampled adjoint over the curvature batch. A batch with non-finite traffic is left out.

        Bases must stand before moments are taken in them: the first chunk speaks for the whole batch.
        """
        decay = min(1 - 1 / (self.steps + 1), self.settings.decay)
        due = self.steps < self.settings.refresh_always or self.steps % self.settings.refresh == 0
        sums: list[Tensor] = []
        moments: list[Tensor] = []
        positions: list[int] = []
        for chunk in linearization.traffic(generator):
            if not self._weights:
                self._lay_out(chunk)
            self._check_layout(chunk)
            here = self._positions_of(chunk)
            _accumulate(sums, self._factor_sums(chunk))
            if not _finite(sums):
                return SAMPLED_ADJOINT_AND_MOMENTS
            if not positions:
                self._refresh(sums, here, decay, due)
            positions = [a + b for a, b in zip(positions or [0] * len(here), here, strict=True)]
            _accumulate(moments, self._chunk_moments(chunk))
        if moments and _finite(moments):
            self._average(sums, moments, positions, linearization.count, decay)
        self._rebuild()
        return SAMPLED_ADJOINT_AND_MOMENTS

    def _lay_out(self, chunk: list[WeightTraffic]) -> None:
        """Weights with the same inputs or deltas (the gates' W_hi and W_hh, say) share that factor and its
        basis."""
        shared: dict[tuple[Any, ...], int] = {}
        for weight in chunk:
            inputs = self._factor_of(shared, weight.inputs, weight.columns)
            outputs = self._factor_of(shared, weight.deltas, weight.rows)
            self._weights.append(_Weight(_place(weight), inputs, outputs))

    def _factor_of(self, shared: dict[tuple[Any, ...], int], values: Tensor, size: int) -> int:
        key = (values.data_ptr(), values.shape, values.stride(), size)
        if key not in shared:
            shared[key] = len(self._factors)
            self._factors.append(self._new_factor(size, not values.is_floating_point(), values.device))
        return shared[key]

    def _new_factor(self, size: int, lookup: bool, device: torch.device) -> Factor | SymbolFactor:
        if not lookup:
            return Factor()
        given = self.symbol_frequencies
        return SymbolFactor(size, None if given is None else given.to(device))

    def _check_layout(self, chunk: list[WeightTraffic]) -> None:
        here = [_place(weight) for weight in chunk]
        known = [weight.place for weight in self._weights]
        if here != known:
            raise ValueError(
                f"the Kronecker preconditioner has met the weights {[p[0] for p in known]} and is now "
                f"given {[p[0] for p in here]}: one belongs to one model; build a new optimiser"
            )

    def _positions_of(self, chunk: list[WeightTraffic]) -> list[int]:
        """Positions that each factor is summed over: T B of a recurrent layer, but plain modules may differ
        by weight."""
        positions = [0] * len(self._factors)
        for weight, traffic in zip(self._weights, chunk, strict=True):
            positions[weight.inputs] = traffic.deltas.shape[0] * traffic.deltas.shape[1]
            positions[weight.outputs] = positions[weight.inputs]
        return positions

    def _factor_sums(self, chunk: list[WeightTraffic]) -> list[Tensor]:
        """Σ x xᵀ over the chunk's positions, or symbol counts, for each factor."""
        sums: dict[int, Tensor] = {}
        for weight, traffic in zip(self._weights, chunk, strict=True):
            inputs = traffic.inputs
            if weight.inputs not in sums and inputs.is_floating_point():
                sums[weight.inputs] = outer_products(inputs)
            elif weight.inputs not in sums:
                sums[weight.inputs] = symbol_counts(inputs, weight.columns)
            if weight.outputs not in sums:
                sums[weight.outputs] = outer_products(traffic.deltas)
        return [sums[index] for index in range(len(self._factors))]

    def _refresh(self, sums: list[Tensor], positions: list[int], decay: float, due: bool) -> None:
        turns: dict[int, Tensor] = {}
        for index, factor in enumerate(self._factors):
            if isinstance(factor, Factor) and (due or factor.basis is None):
                turn = factor.refresh(factor.blended(sums[index] / positions[index], decay))
                if turn is not None:
                    turns[index] = turn.square()
        for weight in self._weights:
            if weight.moments is not None and weight.outputs in turns:
                weight.moments = turns[weight.outputs] @ weight.moments
            if weight.moments is not None and weight.inputs in turns:
                weight.moments = weight.moments @ turns[weight.inputs].mT

    def _chunk_moments(self, chunk: list[WeightTraffic]) -> list[Tensor]:
        """Σ over the chunk's sequences of squared per-sequence gradients in the eigenbasis, for each
        weight."""
        totals = [traffic.deltas.new_zeros(traffic.rows, traffic.columns) for traffic in chunk]
        for outputs in dict.fromkeys(weight.outputs for weight in self._weights):
            group = [i for i, weight in enumerate(self._weights) if weight.outputs == outputs]
            deltas = chunk[group[0]].deltas
            largest = max(sequence_elements(chunk[i]) for i in group)
            for slab in slabs(deltas, largest, self.settings.slab_bytes):
                rows = self._basis(outputs)
                here = deltas[:, slab]
                if len(group) > 1:  # weights that share their deltas share their rotation
                    assert rows is not None
                    here, rows = here @ rows, None
                for i in group:
                    columns = self._basis(self._weights[i].inputs)
                    totals[i] += sequence_squares(
                        here, chunk[i].inputs[:, slab], rows, columns, chunk[i].columns
                    )
        return totals

    def _average(
        self, sums: list[Tensor], moments: list[Tensor], positions: list[int], scored: int, decay: float
    ) -> None:
        for factor, total, count in zip(self._factors, sums, positions, strict=True):
            if isinstance(factor, Factor):
                factor.average = factor.blended(total / count, decay)
            else:
                factor.add(total)
        for weight, total in zip(self._weights, moments, strict=True):
            mean = total / scored
            weight.moments = mean if weight.moments is None else decay * weight.moments + (1 - decay) * mean
        self._positions = [count / scored for count in positions]
        self.steps += 1

    def _rebuild(self) -> None:
        """M's spectrum from the averages, in the bases as they now are."""
        if self.steps == 0:
            return
        share = self.settings.moments
        values = [factor.values() for factor in self._factors]
        for weight in self._weights:
            assert weight.moments is not None
            product = torch.outer(values[weight.outputs], values[weight.inputs].to(weight.moments.dtype))
            weight.spectrum = share * weight.moments + (1 - share) * self._positions[weight.outputs] * product
        spectra = [weight.spectrum for weight in self._weights if weight.spectrum is not None]
        total = torch.stack([s.sum(0, dtype=torch.float64).sum() for s in spectra]).sum()
        self._mean = float(total) / sum(s.numel() for s in spectra)

    # -- using ---------------------------------------------------------------------------------------------

    def solve(self, residual: Tensor, damping: float, kappa: float = 0.0) -> Tensor:
        """((1 + kappa) M + damping + 0.01 mean(M))⁻¹ residual."""
        if self._mean <= 0:
            return residual
        extra = damping + self.settings.floor * self._mean
        solution = residual / ((1 + kappa) * self._mean + extra)
        for weight in self._weights:
            assert weight.spectrum is not None
            diagonal = (1 + kappa) * weight.spectrum.to(residual.dtype) + extra
            self._turn(weight, residual, solution, diagonal.reciprocal())
        return solution

    def metric(self, vector: Tensor) -> Tensor:
        """M vector; a weight whose traffic was never seen counts as mean(M) I, and so does everything
        before any update."""
        if self._mean <= 0:
            return vector
        result = self._mean * vector
        for weight in self._weights:
            assert weight.spectrum is not None
            self._turn(weight, vector, result, weight.spectrum.to(vector.dtype))
        return result

    def mean(self) -> float:
        return self._mean if self._mean > 0 else 1.0

    def _turn(self, weight: _Weight, source: Tensor, target: Tensor, diagonal: Tensor) -> None:
        """target's block = Q diag Qᵀ of source's block."""
        rows, columns = self._basis(weight.outputs), self._basis(weight.inputs)
        assert rows is not None
        rows = rows.to(source.dtype)
        block = rows.mT @ weight.view(source)
        if columns is None:
            weight.view(target).copy_(rows @ (block * diagonal))
        else:
            columns = columns.to(source.dtype)
            weight.view(target).copy_(rows @ ((block @ columns) * diagonal) @ columns.mT)

    def _basis(self, index: int) -> Tensor | None:
        factor = self._factors[index]
        return factor.basis if isinstance(factor, Factor) else None

    def observe_cg(self, directions: Sequence[Tensor], products: Sequence[Tensor]) -> None:
        pass

    # -- keeping -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "steps": self.steps,
            "positions": list(self._positions),
            "factors": [factor.state_dict() for factor in self._factors],
            "weights": [
                {"place": list(w.place), "inputs": w.inputs, "outputs": w.outputs, "moments": copy(w.moments)}
                for w in self._weights
            ],
        }

    def load_state_dict(self, state: State) -> None:
        check_kind(state, self.kind)
        self.steps = int(state["steps"])
        self._positions = [float(value) for value in state["positions"]]
        self._factors = [self._load_factor(saved) for saved in state["factors"]]
        self._weights = []
        for saved in state["weights"]:
            weight = _Weight(list(saved["place"]), int(saved["inputs"]), int(saved["outputs"]))
            weight.moments = copy(saved["moments"])
            self._weights.append(weight)
        self._mean = 0.0
        self._rebuild()

    def _load_factor(self, saved: State) -> Factor | SymbolFactor:
        size, counts = int(saved["symbols"]), saved["counts"]
        device = counts.device if counts is not None else torch.device("cpu")
        factor = self._new_factor(size, size > 0, device)
        factor.load_state_dict(saved)
        return factor


def _place(weight: WeightTraffic) -> list[Any]:
    """Where a weight lies, as a JSON list."""
    return [weight.name, weight.start, weight.rows, weight.columns, weight.transposed]


def _finite(parts: list[Tensor]) -> bool:
    return not parts or bool(torch.stack([torch.isfinite(part).all() for part in parts]).all())


def _accumulate(totals: list[Tensor], parts: list[Tensor]) -> None:
    if not totals:
        totals.extend(parts)
        return
    for total, part in zip(totals, parts, strict=True):
        total += part
