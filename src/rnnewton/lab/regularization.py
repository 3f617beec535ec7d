"""Weight decay, weight noise and dropout under curvature: one function for the whole of an outer step.

p: number of parameters. θ, v, masks and noise are (p,).

Conjugate gradient needs one fixed function. So noise e and masks m are drawn once per outer step, and until
the next draw the optimiser minimises

    f(θ) = L(m θ + e) + decay/2 · |θ|²     with    ∇f = m ∇L + decay · θ,    Gv = m G(m v) + decay · v

exactly. Dropout masks are by unit: a hidden unit that is dropped is hidden from the outputs and from the
layer above (its columns of W_oh and W_*l are zero, all others are divided by the share that is kept), never
from its own future.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rnnewton.lab.settings import RegularizationSettings
from rnnewton.newton.problem import Linearization, WeightTraffic
from rnnewton.recurrent.model import RecurrentModel


@dataclass(frozen=True)
class Perturbation:
    """Weights that the network sees: mask * θ + noise."""

    mask: Tensor | None
    noise: Tensor | None

    def seen(self, theta: Tensor) -> Tensor:
        theta = theta if self.mask is None else theta * self.mask
        return theta if self.noise is None else theta + self.noise

    def masked(self, v: Tensor) -> Tensor:
        return v if self.mask is None else v * self.mask


NOTHING = Perturbation(None, None)


class RegularizedModel(nn.Module):
    """A model whose parameters are θ; `network` is the model that sees the perturbed weights.

    It linearises itself, as a `RecurrentModel` does, so that any optimiser takes the one for the other.
    """

    def __init__(self, model: RecurrentModel, settings: RegularizationSettings, seed: int) -> None:
        super().__init__()
        self.settings = settings
        self.network = model
        self._generator = torch.Generator().manual_seed(seed)
        self._perturbation = NOTHING
        self._draws = 0
        self._written: tuple[Any, ...] | None = None
        self._names = [name for name, _ in model.named_parameters()]
        self._theta = [nn.Parameter(p.detach().clone()) for p in model.parameters()]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """θ alone: the network's own weights follow from it."""
        yield from zip(self._names, self._theta, strict=True)

    def redraw(self) -> None:
        """A new function: other noise and masks, from now until the next call."""
        flat = self._flat()
        noise = mask = None
        if self.settings.weight_noise > 0:
            drawn = torch.randn(flat.shape, generator=self._generator, dtype=flat.dtype)
            noise = (drawn * self.settings.weight_noise).to(flat.device)
        if self.settings.dropout > 0:
            units = [self._kept(width) for width in self.network.hidden]
            mask = torch.cat([self._mask(name, p, units) for name, p in self.named_parameters()])
            mask = mask.to(device=flat.device, dtype=flat.dtype)
        self._perturbation = Perturbation(mask, noise)
        self._draws += 1

    def linearize(self, inputs: Any, targets: Any = None, **options: Any) -> Linearization:
        theta = self._flat()
        if self._written != self._stamp():  # the same point again must not outdate what stands at it
            with torch.no_grad():
                for parameter, value in self._pieces(self._perturbation.seen(theta)):
                    parameter.copy_(value)
            self._written = self._stamp()
        inner = self.network.linearize(inputs, targets, **options)
        return RegularizedLinearization(inner, theta, self._perturbation, self.settings.weight_decay)

    def mean_loss(self, inputs: Any, targets: Any = None, **options: Any) -> Tensor:
        theta = self._flat()
        with self._lent(self._perturbation.seen(theta)):
            loss = self.network.mean_loss(inputs, targets, **options)
        return loss + 0.5 * self.settings.weight_decay * theta.double().square().sum()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        self._generator.set_state(state_dict["generator"])

    def _stamp(self) -> tuple[Any, ...]:
        """What the network's weights were made of; they are also written from outside, to be scored or
        saved.
        """
        versions = [parameter._version for parameter in (*self._theta, *self.network.parameters())]
        return versions, self._draws

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._theta])

    def _pieces(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        parameters = list(self.network.parameters())
        for parameter, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            yield parameter, values.view_as(parameter)

    @contextmanager
    def _lent(self, flat: Tensor) -> Generator[None]:
        """The network at other weights; `.data` leaves the version counters, and so every linearisation,
        alone.
        """
        kept = [p.data for p in self.network.parameters()]
        try:
            for parameter, values in self._pieces(flat):
                parameter.data = values
            yield
        finally:
            for parameter, values in zip(self.network.parameters(), kept, strict=True):
                parameter.data = values

    def _kept(self, width: int) -> Tensor:
        """0 for a hidden unit that is dropped, and for the others what makes up for it on average."""
        share = 1.0 - self.settings.dropout
        return (torch.rand(width, generator=self._generator) < share).float() / share

    def _mask(self, name: str, parameter: nn.Parameter, units: list[Tensor]) -> Tensor:
        """The mask of one weight: columns by the layer that it reads, ones where it reads no dropped
        layer.
        """
        source = _layer_read(name, self.network)
        if source is None:
            return torch.ones(parameter.numel())
        return units[source].expand(parameter.shape).reshape(-1)


def _layer_read(name: str, network: RecurrentModel) -> int | None:
    """The layer whose outputs a weight carries upwards; None for inputs, biases and a layer's own past."""
    if not name.startswith("layers."):
        return None
    _, number, letters = name.split(".")
    layer = int(number)
    if letters == "W_oh":
        return layer
    if letters.startswith("W_") and (
        letters.endswith("l") or (letters.endswith("i") and not network.architecture.reads_input(layer))
    ):
        return layer - 1
    return None


class RegularizedLinearization:
    """The inner linearisation, seen through masks, with the decay's own gradient and curvature."""

    def __init__(self, inner: Linearization, theta: Tensor, perturbation: Perturbation, decay: float) -> None:
        self._inner, self._theta, self._perturbation, self._decay = inner, theta, perturbation, decay

    @property
    def loss(self) -> Tensor:
        return self._inner.loss + 0.5 * self._decay * self._theta.double().square().sum()

    @property
    def count(self) -> int:
        return self._inner.count

    @property
    def last_states(self) -> Any:
        return getattr(self._inner, "last_states", None)

    def gradient(self) -> Tensor:
        return self._perturbation.masked(self._inner.gradient()) + self._decay * self._theta

    def jvp(self, v: Tensor) -> Any:
        return self._inner.jvp(self._perturbation.masked(v))

    def vjp(self, outputs: Any, states: Any = None) -> Tensor:
        return self._perturbation.masked(self._inner.vjp(outputs, states))

    def gauss_newton(
        self,
        v: Tensor,
        structural: float = 0.0,
        tikhonov: float = 0.0,
        form: str = "matching",
        tap: str = "output",
    ) -> Tensor:
        masked = self._perturbation.masked
        product = self._inner.gauss_newton(masked(v), structural=structural, form=form, tap=tap)
        return masked(product) + (self._decay + tikhonov) * v

    def traffic(self, generator: torch.Generator | None = None) -> Iterator[list[WeightTraffic]]:
        """The network's own: a preconditioner models its curvature, not the masks of one step."""
        return self._inner.traffic(generator)
