"""Forward, gradient, Gauss-Newton and Hessian products beside everything that a user would pick instead.

    python benchmarks/products.py                   mLSTM-170, 70 symbols, T = 200, B = 256
    python benchmarks/products.py --json > a.json

Every way works on the same symbols, those of one network on the same weights, with a fresh vector each time.
The ways take turns, round by round, beside a raw matrix product, so that a slow minute is everybody's.
Medians count.
Useful operations of a pass: 2·T·B·(k·h² + h·V), k the h × h products of a step; forward 1 pass, gradient
3, product 4. BackPACK and curvlinops are timed where they are installed.

Legend: T steps, B sequences, h units, V symbols, P weights.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from rnnewton.recurrent.kernels import unavailable
from rnnewton.recurrent.matrices import onednn_takes
from rnnewton.recurrent.model import RecurrentModel

SQUARES = {"rnn": 1, "lstm": 4, "lstm-original": 3, "mrnn": 2, "mlstm": 5}
RAW = (512, 170, 680)  # the raw product: rows, columns, gates


@dataclass(frozen=True)
class Setting:
    cell: str
    hidden: int
    symbols: int
    steps: int
    sequences: int
    rounds: int
    clock: str


@dataclass
class Way:
    what: str
    name: str
    run: Callable[[], Any]
    gflop: float | None  # useful ones of one run
    characters: int | None
    seconds: float = 0.0


def main() -> int:
    setting, as_json = arguments()
    torch.manual_seed(0)
    ids = torch.randint(setting.symbols, (setting.steps + 1, setting.sequences))
    ways, absent = [raw_product()], []
    for group in (ours, by_autograd, torch_lstm, backpack, curvlinops):
        try:
            ways += group(setting, ids[:-1], ids[1:])
        except ImportError as error:
            absent.append(f"{group.__name__}: {error}")
    ways = measure(ways, setting, absent)
    if as_json:
        print(json.dumps(report(setting, ways, absent), indent=1))
    else:
        show(setting, ways, absent)
    return 0


def arguments() -> tuple[Setting, bool]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cell", choices=SQUARES, default="mlstm")
    for name, default in (
        ("hidden", 170),
        ("symbols", 70),
        ("steps", 200),
        ("sequences", 256),
        ("rounds", 9),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for one thread on a busy machine"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    fields = ("cell", "hidden", "symbols", "steps", "sequences", "rounds", "clock")
    return Setting(*(getattr(given, field) for field in fields)), given.json


def measure(ways: list[Way], setting: Setting, absent: list[str]) -> list[Way]:
    """Medians over interleaved rounds, after one round that does not count; a way that fails is left out."""
    clock = perf_counter if setting.clock == "wall" else process_time
    able: list[Way] = []
    for way in ways:
        try:
            way.run()
            able.append(way)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            absent.append(f"{way.what}, {way.name}: {str(error).splitlines()[0]}")
    seconds: list[list[float]] = [[] for _ in able]
    for index in range(setting.rounds):
        print(f"round {index + 1} of {setting.rounds}", file=sys.stderr)
        for taken, way in zip(seconds, able):
            begin = clock()
            way.run()
            taken.append(clock() - begin)
    for taken, way in zip(seconds, able):
        way.seconds = median(taken)
    return able


def operations(
    setting: Setting, passes: float, squares: float | None = None, width: int | None = None
) -> float:
    squares, width = squares or SQUARES[setting.cell], width or setting.hidden
    per_position = 2 * (squares * width**2 + width * setting.symbols)
    return passes * setting.steps * setting.sequences * per_position / 1e9


def raw_product(repeats: int = 100) -> Way:
    rows, columns, gates = RAW
    left, right, out = torch.randn(rows, columns), torch.randn(columns, gates), torch.empty(rows, gates)

    def run() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    name = f"torch.mm ({rows}×{columns})·({columns}×{gates})"
    return Way("raw product", name, run, repeats * 2 * rows * columns * gates / 1e9, None)


def network(setting: Setting) -> RecurrentModel:
    return RecurrentModel(setting.cell, setting.hidden, setting.symbols, setting.symbols)


def ours(setting: Setting, inputs: Tensor, targets: Tensor) -> list[Way]:
    def way(what: str, name: str, run: Callable[[], Any], passes: float | None) -> Way:
        gflop = None if passes is None else operations(setting, passes)
        return Way(what, f"rnnewton, {name}", run, gflop, inputs.numel())

    kinds = [("eager", "plain")] + [("eager", "onednn")] * onednn_takes(torch.zeros(1))
    kinds += [("native", "plain")] if unavailable() is None else []
    ways: list[Way] = []
    for kernels, route in kinds:
        model = network(setting)
        model.route = route
        name = kernels if route == "plain" else f"{kernels} through {route}"

        def linearize(model: RecurrentModel = model, kernels: str = kernels, **more: Any) -> Any:
            return model.linearize(inputs, targets, kernels=kernels, **more)

        def product(lin: Any) -> Callable[[], Tensor]:
            return lambda: lin.gauss_newton(torch.randn(lin.net.layout.size), structural=0.1, tikhonov=0.1)

        ways += [
            way("forward", f"{name}, activations kept", linearize, 1),
            way("gradient", name, lambda linearize=linearize: linearize().gradient(), 3),
            way("product", name, product(linearize()), 4),
            way("product", f"{name}, recomputed", product(linearize(memory="recomputed")), 4),
        ]
    model = network(setting)

    def autograd_face() -> None:
        model.zero_grad()
        cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten()).backward()

    lin = model.linearize(inputs, targets, kernels="eager")
    ways.append(way("gradient", "module under autograd", autograd_face, 3))
    ways.append(
        way(
            "hessian", "torch.func, reference loop", lambda: lin.hessian(torch.randn(model.layout.size)), None
        )
    )
    return ways


def by_autograd(setting: Setting, inputs: Tensor, targets: Tensor) -> list[Way]:
    """The reference loop on identical weights, by what torch offers."""
    model = network(setting)
    return through_torch(
        lambda: model.reference(inputs)[0], model, targets, setting, "reference loop", (None, None)
    )


class TorchLSTM(nn.Module):
    """torch.nn.LSTM with as many weights as the network beside it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        wanted, symbols = network(setting).layout.size, setting.symbols
        self.width = next(h for h in range(1, 100_000) if 4 * h * (h + symbols) + h * symbols >= wanted)
        self.symbols = symbols
        self.lstm = nn.LSTM(symbols, self.width, bias=False)
        self.readout = nn.Linear(self.width, symbols, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.readout(self.lstm(one_hot(ids, self.symbols).float())[0])


def torch_lstm(setting: Setting, inputs: Tensor, targets: Tensor) -> list[Way]:
    model = TorchLSTM(setting)
    name = f"torch.nn.LSTM-{model.width}"
    return through_torch(lambda: model(inputs), model, targets, setting, name, (4, model.width))


def through_torch(
    forward: Callable[[], Tensor],
    model: nn.Module,
    targets: Tensor,
    setting: Setting,
    name: str,
    size: tuple[int | None, int | None],
) -> list[Way]:
    """Forward, gradient and products of a module by plain autograd and by torch.func."""
    weights = list(model.parameters())
    names = [key for key, _ in model.named_parameters()]

    def way(what: str, how: str, run: Callable[[], Any], passes: float) -> Way:
        return Way(what, f"{name}{how}", run, operations(setting, passes, *size), targets.numel())

    def bare() -> None:
        with torch.no_grad():
            forward()

    def gradient() -> None:
        torch.autograd.grad(cross_entropy(forward().flatten(0, 1), targets.flatten()), weights)

    def fresh() -> list[Tensor]:
        return [torch.randn_like(weight) for weight in weights]

    graph: list[Tensor] = []  # the forward pass, kept from one product to the next

    def double_backward() -> None:
        if not graph:
            graph.append(forward())
        (z,) = graph
        u = torch.zeros_like(z, requires_grad=True)
        back = torch.autograd.grad(z, weights, u, create_graph=True)
        (r_z,) = torch.autograd.grad(back, u, fresh())
        torch.autograd.grad(z, weights, curvature(z.detach(), r_z), retain_graph=True)

    def jvp_vjp() -> None:
        def outputs(*values: Tensor) -> Tensor:
            with torch.nn.utils.stateless._reparametrize_module(model, dict(zip(names, values))):
                return forward()

        point = tuple(weight.detach() for weight in weights)
        r_z = torch.func.jvp(outputs, point, tuple(fresh()))[1]
        z, pull = torch.func.vjp(outputs, *point)
        pull(curvature(z, r_z))

    return [
        way("forward", "", bare, 1),
        way("gradient", ", autograd", gradient, 3),
        way("product", ", double backward", double_backward, 4),
        way("product", ", torch.func jvp + vjp", jvp_vjp, 4),
    ]


def curvature(z: Tensor, r_z: Tensor) -> Tensor:
    """H_loss R(z) of the softmax, mean over positions."""
    p = z.softmax(-1)
    return p * (r_z - (p * r_z).sum(-1, keepdim=True)) / (z.shape[0] * z.shape[1])


def backpack(setting: Setting, inputs: Tensor, targets: Tensor) -> list[Way]:
    from backpack.hessianfree.ggnvp import ggn_vector_product

    model = TorchLSTM(setting)
    kept: list[Tensor] = []

    def product() -> None:
        if not kept:
            z = model(inputs).flatten(0, 1)
            kept.extend((cross_entropy(z, targets.flatten()), z))
        vector = [torch.randn_like(weight) for weight in model.parameters()]
        ggn_vector_product(kept[0], kept[1], model, vector)

    gflop = operations(setting, 4, 4, model.width)
    name = f"BackPACK on torch.nn.LSTM-{model.width}"
    return [Way("product", name, product, gflop, targets.numel())]


def curvlinops(setting: Setting, inputs: Tensor, targets: Tensor) -> list[Way]:
    from curvlinops import GGNLinearOperator

    model = network(setting)

    class Flat(nn.Module):
        """The reference loop with positions as examples, as the library wants them."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            return self.model.reference(ids)[0].flatten(0, 1)

    flat = Flat()
    parameters = dict(flat.named_parameters())
    operator = GGNLinearOperator(
        flat, nn.CrossEntropyLoss(), parameters, [(inputs, targets.flatten())], check_deterministic=False
    )
    size = model.layout.size
    name = "curvlinops on the reference loop"
    return [
        Way("product", name, lambda: operator @ torch.randn(size), operations(setting, 4), targets.numel())
    ]


def ratios(ways: list[Way]) -> dict[str, float]:
    """What the project promises, as far as these ways were timed."""
    seconds = {(way.what, way.name): way.seconds for way in ways}
    rates = {(way.what, way.name): way.gflop / way.seconds for way in ways if way.gflop}
    eager, raw = ("product", "rnnewton, eager"), next(key for key in rates if key[0] == "raw product")
    wanted = {
        "eager product over torch.mm (at least 0.5)": (rates, eager, raw),
        "double backward through the reference loop over eager product (at least 3)": (
            seconds,
            ("product", "reference loop, double backward"),
            eager,
        ),
        "recomputed over stored, eager (at most 2.1)": (
            seconds,
            ("product", "rnnewton, eager, recomputed"),
            eager,
        ),
        "Hessian product over jvp + vjp, both by torch.func (the thesis: about 2)": (
            seconds,
            ("hessian", "rnnewton, torch.func, reference loop"),
            ("product", "reference loop, torch.func jvp + vjp"),
        ),
        "Hessian product over eager Gauss-Newton product": (
            seconds,
            ("hessian", "rnnewton, torch.func, reference loop"),
            eager,
        ),
        "native product over torch.mm": (rates, ("product", "rnnewton, native"), raw),
    }
    return {
        name: values[a] / values[b] for name, (values, a, b) in wanted.items() if a in values and b in values
    }


def report(setting: Setting, ways: list[Way], absent: list[str]) -> dict[str, Any]:
    raw = next(way for way in ways if way.what == "raw product")
    rows = [
        {
            "what": way.what,
            "way": way.name,
            "seconds": way.seconds,
            "characters_per_second": way.characters and way.characters / way.seconds,
            "gflops": way.gflop and way.gflop / way.seconds,
            "of_raw_product": way.gflop and way.gflop / way.seconds / (raw.gflop / raw.seconds),
        }
        for way in ways
    ]
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    return {**asdict(setting), **machine, "ways": rows, "ratios": ratios(ways), "not_timed": absent}


def show(setting: Setting, ways: list[Way], absent: list[str]) -> None:
    whole = report(setting, ways, absent)
    print(
        f"{setting.cell}-{setting.hidden}, {setting.symbols} symbols, T {setting.steps},"
        f" B {setting.sequences}; torch {whole['torch']}, {whole['threads']} threads; median of"
        f" {setting.rounds} rounds, {setting.clock} time"
    )
    print(f"{'what':<12} {'way':<48} {'ms':>9} {'characters/s':>13} {'GFLOP/s':>8} {'of mm':>6}")
    for row in whole["ways"]:
        rate = "" if row["characters_per_second"] is None else f"{row['characters_per_second']:,.0f}"
        useful = (
            ["", ""] if row["gflops"] is None else [f"{row['gflops']:.1f}", f"{row['of_raw_product']:.2f}"]
        )
        print(
            f"{row['what']:<12} {row['way']:<48} {1e3 * row['seconds']:>9.1f} {rate:>13} {useful[0]:>8}"
            f" {useful[1]:>6}"
        )
    for name, value in whole["ratios"].items():
        print(f"{name}: {value:.2f}")
    for line in absent:
        print(f"not timed: {line}")


if __name__ == "__main__":
    raise SystemExit(main())
