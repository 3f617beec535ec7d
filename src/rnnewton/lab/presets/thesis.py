"""The experiments of the thesis, chapters 4 and 5.

Where the thesis is silent or cannot be followed, this is what is done instead:

- Structural damping alone diverges on texts with rare symbols: their weights have a gradient in the large
  batch and no curvature in its quarter. Every structural preset therefore has Tikhonov damping of 0.01
  beside it.
- The thesis's lambda = 10 for Wikipedia has no unit. Its loss was a sum over the T = 1000 characters of a
  sequence, as in Martens's code; for a mean over characters that is 10 / 1000 = 0.01, which is what the
  preset takes.
- It prints no learning rate for online LSTM learning; 0.05 is ours.
"""

from collections.abc import Iterator
from dataclasses import replace

from rnnewton.lab.presets import Preset, Printed
from rnnewton.lab.settings import (
    LimitSettings,
    ModelSettings,
    OptimizerSettings,
    ReportSettings,
    SequenceSettings,
    Settings,
)

_PENN_START = "2800000/200000/200000"  # chapter 4: the beginning of the raw corpus
_WIKIPEDIA = "95000000/1000000/4000000"

# Chapter 4: the gradient on everything, the curvature on a fresh random quarter.
_CHAPTER_4 = SequenceSettings(
    length=200, gradient_batch="all", curvature_batch="1/4", final_gradient_batch="all"
)
_PENN = SequenceSettings(
    length=300, gradient_batch="2160000", curvature_batch="216000", final_gradient_batch="2160000"
)
_WIKIPEDIA_SEQUENCES = SequenceSettings(
    length=1000,
    order="consecutive",
    gradient_batch="2100000",
    curvature_batch="1/10",
    final_gradient_batch="2100000",
)


def _structural(mu: float) -> str:
    return f"structural:{mu:g}+tikhonov:0.01"


def _hessian_free(damping: str) -> OptimizerSettings:
    """Chapters 3 and 4: up to 100 plain iterations from the last solution; the last iterate, no average."""
    return OptimizerSettings(
        optimizer="hf",
        damping=damping,
        cg_iterations=100,
        preconditioner="none",
        warm_start=0.95,
        average=0.0,
    )


def _settings(model: ModelSettings, sequences: SequenceSettings, optimizer: OptimizerSettings) -> Settings:
    return Settings(
        model=model,
        sequences=sequences,
        optimizer=optimizer,
        limits=LimitSettings(patience=5),
        reports=ReportSettings(validate_every=1),
    )


def _chapter_4() -> Iterator[Preset]:
    rnn = ModelSettings(cell="rnn", hidden=(400,), init="sparse:0.1")
    lstm = ModelSettings(cell="lstm", hidden=(195,), init="normal:0.1")
    mrnn = ModelSettings(cell="mrnn", hidden=(280,), init="normal:0.05")
    stack = replace(mrnn, hidden=(150, 130, 110))
    mlstm = ModelSettings(cell="mlstm", hidden=(170,), init="normal:0.1")
    online = OptimizerSettings(optimizer="lstm-online", learning_rate=0.05, average=0.0, batch=1)
    line_search = "line-search:0.8"
    rows: list[tuple[str, str, ModelSettings, OptimizerSettings, Printed]] = [
        ("rnn-structural", "RNN, structural damping", rnn, _hessian_free(_structural(0.01)),
         Printed(216_400, 70, "table 4.1", 1.80, 2.04, 1.99)),
        ("rnn-line-search", "RNN, line-search damping", rnn, _hessian_free(line_search),
         Printed(216_400, 70, "table 4.1", 1.78, 2.03, 1.97)),
        ("mrnn-structural", "multiplicative RNN, structural damping", mrnn, _hessian_free(_structural(0.3)),
         Printed(215_880, 70, "table 4.1", 1.69, 1.90, 1.87)),
        ("mrnn-line-search", "multiplicative RNN, line-search damping", mrnn, _hessian_free(line_search),
         Printed(215_880, 70, "table 4.1", 1.72, 1.88, 1.85)),
        ("lstm", "LSTM, Hessian-free", lstm, _hessian_free(_structural(0.01)),
         Printed(220_350, 70, "table 4.2", 1.75, 1.93, 1.88)),
        ("lstm-online", "LSTM, its original online learning", lstm, online,
         Printed(220_350, 70, "table 4.2", 1.81, 2.03, 1.98)),
        ("stacked-mrnn", "stack of three multiplicative RNNs", stack, _hessian_free(_structural(0.3)),
         Printed(219_090, 70, "table 4.3", 1.74, 1.90, 1.87)),
        ("mlstm", "multiplicative LSTM, mu = 0.1", mlstm, _hessian_free(_structural(0.1)),
         Printed(215_900, 70, "table 4.4", 1.69, 1.86, 1.82)),
        ("mlstm-mu-0.3", "multiplicative LSTM, mu = 0.3", mlstm, _hessian_free(_structural(0.3)),
         Printed(215_900, 70, "section 4.5", None, 1.87, None)),
    ]  # fmt: skip
    for name, about, model, optimizer, printed in rows:
        yield Preset(
            f"thesis/{name}", about, _settings(model, _CHAPTER_4, optimizer), "penn", _PENN_START, printed
        )


def _chapter_5() -> Iterator[Preset]:
    def mlstm(width: int) -> ModelSettings:
        return ModelSettings(cell="mlstm", hidden=(width,), init="normal:0.1")

    for size, width, printed in (
        ("medium", 300, Printed(603_000, 85, "table 5.1", 1.60, 1.74, 1.70)),
        ("large", 800, Printed(3_608_000, 85, "table 5.1", 1.40, 1.76, 1.72)),
    ):
        settings = _settings(mlstm(width), _PENN, _hessian_free(_structural(0.1)))
        yield Preset(
            f"thesis/penn-{size}",
            f"{size} multiplicative LSTM, whole Penn Treebank",
            settings,
            "penn",
            None,
            printed,
        )
    for name, damping, printed in (
        ("structural", _structural(1.0), Printed(21_188_000, 99, "table 5.2", None, 1.70, 1.71)),
        ("line-search", "line-search:0.8", Printed(21_188_000, 99, "table 5.2", None, 1.68, 1.69)),
    ):
        settings = _settings(mlstm(2000), _WIKIPEDIA_SEQUENCES, _hessian_free(damping))
        yield Preset(
            f"thesis/wikipedia-{name}",
            f"multiplicative LSTM of 2000 units, Wikipedia, {name} damping",
            settings,
            "enwik8",
            _WIKIPEDIA,
            printed,
        )


def experiments() -> list[Preset]:
    return [*_chapter_4(), *_chapter_5()]
