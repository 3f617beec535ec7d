"""Every setting of a training run: typed, in one place, with what it means and what it may be.

The same field is a key of the TOML file, `--its-name` on the command line, and a line of the run's
config.toml. None stands for "chosen by the program from the text and the machine" (see choices.py), which
is said in one line when the run starts.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, cast

from rnnewton.lab import values
from rnnewton.lab.values import Kind
from rnnewton.text import split

CELLS = ("rnn", "lstm", "lstm-original", "mrnn", "mlstm")
OPTIMIZERS = ("hf", "sgd", "momentum", "nesterov", "adam", "lstm-online")


def setting(kind: Kind, default: Any, help: str, fixed: bool = True, flag: bool = True) -> Any:
    """A field; `fixed` ones make a run what it is and cannot change when it goes on. Not every one has a
    flag.
    """
    return field(default=default, metadata={"kind": kind, "help": help, "fixed": fixed, "flag": flag})


def _damping(text: str) -> None:
    """structural:0.1+tikhonov:0.01, line-search:0.8: names joined by +, each with a number or none."""
    names = [_damping_part(part) for part in text.split("+")]
    if len(set(names)) != len(names):
        raise ValueError


def _damping_part(part: str) -> str:
    name, colon, number = part.strip().partition(":")
    if name not in ("structural", "tikhonov", "line-search", "metric"):
        raise ValueError
    if colon:
        values.number(above=name == "line-search", maximum=1.0 if name == "line-search" else 1e30).read(
            number
        )
    return name


def _init(text: str) -> None:
    name, _, deviation = text.partition(":")
    if name not in ("normal", "sparse"):
        raise ValueError
    values.number(above=True).read(deviation)


DAMPING = values.checked(
    "DAMPING",
    "structural:X, tikhonov:X, line-search:X or a sum such as structural:0.1+tikhonov:0.01",
    _damping,
)
INIT = values.checked("INIT", "normal:DEVIATION or sparse:DEVIATION, such as normal:0.1,", _init)
SPLIT = values.checked(
    "SPLIT",
    "shares as 0.9/0.05/0.05, counts as 2800000/200000/200000, or files as VALIDATION,TEST",
    split.parse,
)


@dataclass(frozen=True)
class ModelSettings:
    """The network"""

    cell: str = setting(values.choice(*CELLS), "mlstm", "kind of recurrent network")
    hidden: tuple[int, ...] | None = setting(
        values.widths(), None, "hidden units, one number a layer (default: from the size of the text)"
    )
    direct_input: bool = setting(values.switch(), True, "in a stack, every layer sees the input itself")
    direct_output: bool = setting(values.switch(), True, "in a stack, every layer has its own output weights")
    bias: bool | None = setting(
        values.switch(), None, "biases on hidden units and gates (default: as the thesis: rnn and mrnn only)"
    )
    output_bias: bool = setting(values.switch(), False, "biases on the outputs")
    squash_input: bool = setting(values.switch(), False, "squash the input of gated cells by tanh")
    forget_bias: float | None = setting(
        values.number(-100.0), None, "first value of the forget gates' biases (needs --bias)"
    )
    init: str = setting(
        INIT, "normal:0.1", "first weights; sparse: nine tenths of the recurrent ones are zero"
    )
    seed: int = setting(values.whole(), 0, "seed of every random choice of the run")


@dataclass(frozen=True)
class TextSettings:
    """The text"""

    text: str | None = setting(
        values.words("TEXT"), None, "file to learn from, or a corpus by name (default: built-in)"
    )
    split: str | None = setting(
        SPLIT,
        None,
        "training/validation/test: shares 0.9/0.05/0.05, counts 28000/2000/2000, or files VALIDATION,TEST",
    )
    read: str = setting(values.choice("auto", "utf8", "bytes"), "auto", "characters of UTF-8, or bytes")
    alphabet: int | None = setting(
        values.whole(2),
        None,
        "keep the N-1 most frequent symbols and one for all others (default: all symbols)",
    )
    merge: str | None = setting(
        values.words("SYMBOLS"), None, "count these symbols as one, the first of them"
    )
    digest: str | None = setting(
        values.words(), None, "checksum of the text, by which a run knows it again", flag=False
    )


@dataclass(frozen=True)
class SequenceSettings:
    """How the text is cut"""

    length: int | None = setting(
        values.whole(1), None, "characters of a sequence: how far errors flow back in time"
    )
    order: str = setting(
        values.choice("random", "consecutive"),
        "random",
        "sequences of a batch: drawn over the text, or one stretch of it",
    )
    carry: bool = setting(
        values.switch(),
        False,
        "read the text in parallel streams whose state is carried from one sequence to the next"
        " (first-order optimisers; default: every sequence starts from state 0)",
    )
    gradient_batch: str | None = setting(
        values.amount(),
        None,
        "characters whose gradient one step uses: all, a part of the text, or a number such as 100k",
    )
    curvature_batch: str | None = setting(
        values.amount(),
        None,
        "characters of them whose curvature it uses: all, a part such as 1/4, or a number",
    )
    final_gradient_batch: str | None = setting(
        values.amount(),
        None,
        "what the gradient batch grows to (default: chosen; equal to --gradient-batch: no growth)",
    )
    growth: float = setting(values.number(1.0), 2.0, "factor by which the gradient batch grows")
    growth_work: float | None = setting(
        values.number(above=True),
        None,
        "epochs of gradient between two such growths (default: the batch is a hundredth of the work so far)",
    )


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimiser"""

    optimizer: str = setting(values.choice(*OPTIMIZERS), "hf", "hf is Hessian-free and needs no tuning")
    damping: str | None = setting(DAMPING, None, "damping of Hessian-free (default: chosen by batch size)")
    form: str = setting(
        values.choice("matching", "squared"), "matching", "structural damping: equation or text of the thesis"
    )
    tap: str = setting(
        values.choice("output", "cell"), "output", "structural damping: states that are held still"
    )
    preconditioner: str | None = setting(
        values.choice("none", "diagonal", "lbfgs", "kronecker"),
        None,
        "preconditioner of conjugate gradient (default: chosen)",
    )
    cg_iterations: int | None = setting(
        values.whole(1), None, "most iterations of one conjugate gradient run"
    )
    warm_start: float | None = setting(
        values.number(0.0, maximum=1.0), None, "part of the last solution that the next run starts from"
    )
    average: float | None = setting(
        values.number(0.0, maximum=0.9999),
        None,
        "decay of the averaged weights that are scored beside the last ones; 0: none (default: chosen)",
    )
    learning_rate: float | None = setting(
        values.number(above=True), None, "first-order: learning rate (default: chosen)"
    )
    momentum: float = setting(values.number(0.0, maximum=0.9999), 0.9, "momentum and nesterov: momentum")
    clip: float = setting(values.number(0.0), 1.0, "first-order: largest norm of a gradient; 0: no clipping")
    batch: int | None = setting(
        values.whole(1), None, "first-order: sequences of one update (default: chosen)"
    )
    schedule: str = setting(
        values.choice("constant", "cosine"), "constant", "first-order: learning rate over the run's --steps"
    )


@dataclass(frozen=True)
class RegularizationSettings:
    """Regularisation"""

    weight_decay: float = setting(
        values.number(), 0.0, "adds X/2 times the sum of squared weights to the loss"
    )
    weight_noise: float = setting(
        values.number(), 0.0, "deviation of noise on the weights, drawn once per step"
    )
    dropout: float = setting(
        values.number(maximum=0.95),
        0.0,
        "part of the hidden units hidden from the outputs, drawn once per step",
    )


@dataclass(frozen=True)
class LimitSettings:
    """When to stop"""

    steps: int | None = setting(
        values.whole(), None, "steps of the whole run, all resumes together", fixed=False
    )
    seconds: float | None = setting(
        values.number(above=True),
        None,
        "seconds of training, all resumes together (default: chosen)",
        fixed=False,
    )
    patience: int | None = setting(
        values.whole(1),
        None,
        "stop after so many validations without a better one (default: chosen)",
        fixed=False,
    )


@dataclass(frozen=True)
class MachineSettings:
    """The machine"""

    device: str = setting(
        values.checked("DEVICE", "cpu, cuda, cuda:N or mps", lambda text: _device(text)),
        "cpu",
        "cpu, cuda, cuda:N or mps",
        fixed=False,
    )
    precision: str = setting(
        values.choice("fp32", "tf32", "bf16", "fp64"), "fp32", "arithmetic of the weights' products"
    )
    memory: int | None = setting(
        values.size(),
        None,
        "memory for the activations of one batch, such as 2GiB (default: a quarter of the machine's)",
        fixed=False,
    )
    threads: int | None = setting(
        values.whole(1), None, "processor threads (default: all cores)", fixed=False
    )


@dataclass(frozen=True)
class ReportSettings:
    """What is written when"""

    report_every: int | None = setting(
        values.whole(1),
        None,
        "first-order: updates per step, which is one line of metrics (default: chosen)",
        fixed=False,
    )
    validate_every: int | None = setting(
        values.whole(1), None, "steps between two validations (default: a tenth of the work)", fixed=False
    )
    checkpoint_every: int = setting(values.whole(1), 1, "steps between two checkpoints", fixed=False)
    tensorboard: bool = setting(values.switch(), False, "write scalars for TensorBoard too", fixed=False)


def _device(text: str) -> None:
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", text):
        raise ValueError


@dataclass(frozen=True)
class Settings:
    model: ModelSettings = field(default_factory=ModelSettings)
    text: TextSettings = field(default_factory=TextSettings)
    sequences: SequenceSettings = field(default_factory=SequenceSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    regularization: RegularizationSettings = field(default_factory=RegularizationSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    reports: ReportSettings = field(default_factory=ReportSettings)
    preset: str | None = None


GROUPS: dict[str, type[Any]] = {
    each.name: cast("type[Any]", each.default_factory)
    for each in fields(Settings)
    if each.default_factory is not MISSING
}


def all_settings() -> Iterator[tuple[str, "Field[Any]"]]:
    """(group, field) of every setting, in the order of the help text."""
    for group, kind in GROUPS.items():
        for each in fields(kind):
            yield group, each
