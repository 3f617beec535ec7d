"""Dynamic evaluation: the model learns while it reads, and each symbol is scored before it is learned.

The text is read in segments of `segment` symbols. A segment is scored with the weights as they are; then
they take one step along its gradient g, truncated to the segment:

    rule "sgd"   theta <- theta - rate g                  + pull (theta_0 - theta)
    rule "rms"   theta <- theta - rate g / (RMS + floor)  + min(pull RMS / mean RMS, 1) (theta_0 - theta)

theta_0 are the trained weights and RMS the root of the mean squared gradient of each weight over segments of
the training text (Krause et al., 2018), which makes one rate fit models of any scale. The caller's model is
as before when the `with` block ends.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rnnewton.lab.evaluation import Learner
from rnnewton.recurrent.cells.base import State
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text.alphabet import Ids
from rnnewton.text.blocks import Streams
from rnnewton.text.errors import UserError

RULES = ("sgd", "rms")
RATES = {"sgd": 0.003, "rms": 2e-4}  # what a rule takes where no rate is given
_FLOOR = 0.1  # of the mean RMS: what the RMS of a weight that the statistics never saw counts as
_STATISTICS = 30_000  # symbols of training text behind the RMS, at most


@dataclass(frozen=True)
class DynamicSettings:
    """How fast and by which rule the weights follow the text."""

    rule: str = "sgd"
    rate: float | None = None  # None: the rule's own, see RATES
    segment: int = 20
    pull: float = 0.0  # back to the trained weights, per step

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UserError(
                f"dynamic evaluation by {self.rule!r} is not known: take one of {', '.join(RULES)}"
            )
        if self.segment < 1:
            raise UserError(f"a segment has at least 1 symbol, not {self.segment}")
        if not (self.rate or 0.0) >= 0 or not 0 <= self.pull <= 1:  # nan is neither
            raise UserError(
                f"the rate is not below 0 and the pull is within 0 and 1, not {self.rate} and {self.pull}"
            )


class DynamicLearner:
    """Scores a segment, then moves the weights along its gradient."""

    def __init__(
        self, model: RecurrentModel, settings: DynamicSettings, rms: list[Tensor] | None = None
    ) -> None:
        if settings.rule == "rms" and rms is None:
            raise UserError('the rule "rms" needs gradient_rms() of the training text')
        self.segment = settings.segment
        self._model = model
        self._rate = RATES[settings.rule] if settings.rate is None else settings.rate
        self._pull = settings.pull
        self._weights = list(model.parameters())
        self._trained = [weight.detach().clone() for weight in self._weights]
        self._rms, self._mean = rms, 0.0
        if rms is not None:
            self._mean = sum(float(each.sum()) for each in rms) / sum(each.numel() for each in rms)

    def score_and_learn(
        self, inputs: Tensor, targets: Tensor, state: list[State] | None
    ) -> tuple[Tensor, list[State]]:
        """Nats (T,) before learning, and the state after; then one step."""
        native = self._model.learn(inputs, targets, state)
        if native is not None:
            logits, after, sums = native
            nats = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            with torch.no_grad():
                self._step(tuple(gradient / len(nats) for gradient in sums))
            return nats, after
        with torch.enable_grad():
            logits, after = self._model(inputs, state)
            nats = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            gradients = torch.autograd.grad(nats.mean(), self._weights)
        with torch.no_grad():
            self._step(gradients)
        return nats.detach(), detached(after)

    def _step(self, gradients: tuple[Tensor, ...]) -> None:
        if self._rms is None:
            for weight, gradient, trained in zip(self._weights, gradients, self._trained):
                weight.sub_(gradient, alpha=self._rate)
                if self._pull:
                    weight.lerp_(trained, self._pull)
            return
        for weight, gradient, trained, rms in zip(self._weights, gradients, self._trained, self._rms):
            weight.addcdiv_(gradient, rms + (_FLOOR * self._mean + 1e-12), value=-self._rate)
            if self._pull and self._mean:
                weight.add_((trained - weight) * (self._pull * rms / self._mean).clamp(max=1.0))


@contextmanager
def learner_for(
    model: RecurrentModel, settings: DynamicSettings, rms: list[Tensor] | None = None
) -> Generator[Learner | None]:
    """A learner for one evaluation; afterwards the weights are what they were, to the bit.

    With rate 0 there is nothing to learn and the learner is None: a static evaluation.
    """
    if settings.rate == 0:
        yield None
        return
    weights = [weight.detach().clone() for weight in model.parameters()]
    try:
        yield DynamicLearner(model, settings, rms)
    finally:
        with torch.no_grad():
            for weight, kept in zip(model.parameters(), weights):
                weight.copy_(kept)


def gradient_rms(model: RecurrentModel, ids: Ids, segment: int, width: int = 1) -> list[Tensor]:
    """The root of the mean squared gradient of each weight over segments of a text, at the present weights.

    Only the first 30,000 symbols are read, as `width` streams; a segment of one stream gives one gradient.
    """
    streams = Streams(ids[:_STATISTICS], segment, width)
    weights = list(model.parameters())
    squares = [torch.zeros_like(weight) for weight in weights]
    state: list[State] | None = None
    for index in range(len(streams)):
        inputs, targets = streams.block(index, weights[0].device)
        logits, after = model(inputs, state)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        for square, gradient in zip(squares, torch.autograd.grad(loss, weights)):
            square.addcmul_(gradient, gradient)
        state = detached(after)
    return [square.div_(len(streams)).sqrt_() for square in squares]


def detached(state: list[State]) -> list[State]:
    """The same values without their history."""
    return [type(layer)(*(x.detach() for x in layer)) for layer in state]
