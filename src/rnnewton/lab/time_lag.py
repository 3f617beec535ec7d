"""The time-lag experiment of chapter 5.2: how long a model remembers that a bracket is open.

After the context `[[`, or the control context `Th`, the model writes letters and spaces only; at every step
log10 of P(']') / P('[') is taken from its whole distribution. Means of 10 steps, then the mean over 10
trials.

S  steps      R  trials of one context      K  contexts; all K·R run side by side: ids (1, K·R), ratios (S,
K, R)
"""

import string
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnewton.lab.evaluation import alphabet_of
from rnnewton.lab.sampling import allowed_ids, draw
from rnnewton.recurrent.cells.base import State
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text.alphabet import Alphabet
from rnnewton.text.errors import UserError


@dataclass(frozen=True)
class TimeLagSettings:
    """The thesis's experiment, or the same for another bracket."""

    contexts: tuple[str, ...] = ("[[", "Th")
    opening: str = "["
    closing: str = "]"
    letters: str = string.ascii_letters + " "  # what may be written
    steps: int = 1000
    smooth: int = 10
    trials: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.smooth, self.trials) < 1 or self.steps < self.smooth:
            raise UserError("the time lag needs at least 1 trial and as many steps as one mean takes")
        if not self.contexts or not all(self.contexts):
            raise UserError("the time lag needs contexts of at least one symbol")


@dataclass(frozen=True)
class TimeLag:
    """log10 of P(closing) / P(opening) after each context, smoothed."""

    settings: TimeLagSettings
    lags: NDArray[np.int64]  # the last step of each mean
    means: NDArray[np.float64]  # (K, means) over trials
    errors: NDArray[np.float64]  # (K, means) standard errors over trials; nan for one trial

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        one = self.settings.trials < 2
        curves = {
            context: {"mean": means.tolist(), "standard_error": None if one else errors.tolist()}
            for context, means, errors in zip(self.settings.contexts, self.means, self.errors)
        }
        names = ("opening", "closing", "steps", "smooth", "trials", "seed")
        return {name: getattr(self.settings, name) for name in names} | {
            "lags": self.lags.tolist(),
            "contexts": curves,
        }

    def rows(self) -> list[tuple[int, list[tuple[float, float]]]]:
        """About a dozen means for a table: (lag, [(mean, standard error) of each
        context])."""
        count = len(self.lags)
        chosen = sorted({min(count - 1, round(i)) for i in np.geomspace(1, count, 12) - 1})
        return [
            (int(self.lags[i]), [(float(m[i]), float(e[i])) for m, e in zip(self.means, self.errors)])
            for i in chosen
        ]


def time_lag(model: RecurrentModel, settings: TimeLagSettings) -> TimeLag:
    """Runs all trials of all contexts side by side."""
    alphabet = alphabet_of(model)
    opening, closing = _one(alphabet, settings.opening), _one(alphabet, settings.closing)
    allowed = allowed_ids(alphabet, _present(alphabet, settings.letters))
    generator = torch.Generator().manual_seed(settings.seed)
    device = next(model.parameters()).device
    ratios: list[Tensor] = []
    with torch.no_grad():
        logits, state = _after_contexts(model, alphabet, settings, device)
        for _ in range(settings.steps):
            # The softmax's normaliser cancels in the ratio.
            ratios.append(((logits[:, closing] - logits[:, opening]) / log(10)).double().cpu())
            ids = draw(logits, allowed, 1.0, generator)
            outputs, state = model(ids[None].to(device), state)
            logits = outputs[-1]
    return _smoothed(torch.stack(ratios), settings)


def _after_contexts(
    model: RecurrentModel, alphabet: Alphabet, settings: TimeLagSettings, device: torch.device
) -> tuple[Tensor, list[State]]:
    """Logits (K·R, V) and states after each context, which may have different lengths."""
    all_logits: list[Tensor] = []
    states: list[list[State]] = []
    for context in settings.contexts:
        ids = alphabet.encode(context)[:, None].expand(-1, settings.trials).contiguous()
        logits, state = model(ids.to(device), None)
        all_logits.append(logits[-1])
        states.append(state)
    joined = [type(layer[0])(*(torch.cat(parts) for parts in zip(*layer))) for layer in zip(*states)]
    return torch.cat(all_logits), joined


def _smoothed(ratios: Tensor, settings: TimeLagSettings) -> TimeLag:
    """Means of `smooth` steps, then mean and standard error over trials. ratios: (S, K·R)."""
    means = settings.steps // settings.smooth
    each = ratios[: means * settings.smooth].reshape(
        means, settings.smooth, len(settings.contexts), settings.trials
    )
    smoothed = each.mean(1).numpy()  # (means, K, R)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation = smoothed.std(-1, ddof=1) if settings.trials > 1 else np.full(smoothed.shape[:2], np.nan)
    return TimeLag(
        settings,
        lags=settings.smooth * np.arange(1, means + 1),
        means=smoothed.mean(-1).T,
        errors=deviation.T / settings.trials**0.5,
    )


def _one(alphabet: Alphabet, symbol: str) -> int:
    codes = alphabet.codes_of(symbol)
    if len(codes) != 1 or bool(alphabet.unknown_among(codes)[0]):
        raise UserError(
            f"the bracket {symbol!r} is not one symbol that the model knows: choose others with --opening"
            " and --closing"
        )
    return int(alphabet.ids_of(codes)[0])


def _present(alphabet: Alphabet, letters: str) -> str:
    """Those of the letters that the model knows."""
    known = "".join(c for c in letters if not bool(alphabet.unknown_among(alphabet.codes_of(c)).any()))
    if not known:
        raise UserError("the model knows none of the letters that the time-lag experiment lets it write")
    return known


def figure(result: TimeLag, path: Path) -> None:
    """Figure 5.1 for this model: a curve per context, its standard error as a band."""
    from matplotlib.figure import Figure

    settings = result.settings
    drawn = Figure(figsize=(7, 4), layout="constrained")
    axes = drawn.subplots()
    for context, means, errors in zip(settings.contexts, result.means, result.errors):
        (line,) = axes.plot(result.lags, means, label=f"after {context!r}")
        axes.fill_between(
            result.lags, means - errors, means + errors, color=line.get_color(), alpha=0.25, linewidth=0
        )
    axes.set_xlabel("steps since the context")
    axes.set_ylabel(f"log10 of P({settings.closing!r}) / P({settings.opening!r})")
    axes.set_title(f"means of {settings.smooth} steps and {settings.trials} trials, with standard errors")
    axes.legend()
    drawn.savefig(path)
