"""The native kernels against the processor's own limit, in one run.

Every round measures the multiply-add peak (for bf16 the dot-product peak) just before and after each way,
with a fresh vector and batch, and the ways take turns, so that a slow minute of the machine is everybody's.
What is printed is the median over the rounds of the ratio to the peak of the same moment. On a machine that
others use as well, `--threads 1 --clock cpu` counts this process's processor time, not the time on the wall.

    python benchmarks/native.py                       the models of the thesis, T = 200, B = 256
    python benchmarks/native.py --large               mLSTM-800 and mLSTM-2000 as well, shorter sequences
    python benchmarks/native.py --sequences 500 --rounds 9 --json
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import rnnewton as rn
from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.blocks import Block, Scored
from rnnewton.recurrent.chunk import Structural
from rnnewton.recurrent.kernels import NativeChunk, Way, library, open_chunk, unavailable
from rnnewton.recurrent.layout import layout_of

SYMBOLS = 70
SQUARES = {"rnn": 1, "lstm": 4, "lstm-original": 3, "mrnn": 2, "mlstm": 5}
MODELS = {
    "mLSTM-170": ("mlstm", (170,)),
    "LSTM-195": ("lstm", (195,)),
    "RNN-400": ("rnn", (400,)),
    "mRNN-280": ("mrnn", (280,)),
    "mRNN-150-130-110": ("mrnn", (150, 130, 110)),
}
LARGE = {"mLSTM-800": ("mlstm", (800,), 40), "mLSTM-2000": ("mlstm", (2000,), 10)}
FORWARD, GRADIENT, PRODUCT = 1, 3, 4  # passes that count as useful


@dataclass(frozen=True)
class Case:
    name: str
    architecture: Architecture
    steps: int
    sequences: int
    precision: str

    def operations(self, passes: int) -> float:
        """Useful operations; the links between the layers of a stack count as well."""
        a = self.architecture
        own = sum(SQUARES[a.cell] * h * h + h * SYMBOLS for h in a.hidden)
        gates = SQUARES[a.cell] if a.cell == "lstm" else 4 if a.cell == "mlstm" else 1
        links = sum(gates * h * below for h, below in zip(a.hidden[1:], a.hidden, strict=False))
        return 2.0 * passes * self.steps * self.sequences * (own + links)


@dataclass
class Row:
    what: str
    passes: int
    seconds: list[float] = field(default_factory=list)
    of_peak: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Clock:
    """Seconds on the wall, or of the processor per thread."""

    kind: str
    threads: int

    def now(self) -> float:
        return time.perf_counter() if self.kind == "wall" else time.process_time() / self.threads


def peak(precision: str, clock: Clock) -> float:
    """Operations a second of independent multiply-adds, for about 20 ms."""
    rounds = 400_000
    began = clock.now()
    done = library().rn_peak(int(precision == "bf16"), clock.threads, rounds)
    return done / (clock.now() - began)


def measure(case: Case, rounds: int, clock: Clock) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    size = layout_of(case.architecture).size
    flat = 0.1 * torch.randn(size, generator=generator)
    rows = {
        name: Row(name, passes)
        for name, passes in [
            ("forward", FORWARD),
            ("gradient", GRADIENT),
            ("product", PRODUCT),
            ("damped product", PRODUCT),
            ("recomputed product", PRODUCT),
        ]
    }

    def timed(name: str, run: Callable[[], None]) -> None:
        before = peak(case.precision, clock)
        began = clock.now()
        run()
        seconds = clock.now() - began
        limit = (before + peak(case.precision, clock)) / 2
        row = rows[name]
        row.seconds.append(seconds)
        row.of_peak.append(case.operations(row.passes) / seconds / limit)

    for turn in range(rounds + 1):  # the first warms memory up and is not counted
        ids = torch.randint(SYMBOLS, (case.steps + 1, case.sequences), generator=generator)
        block = Block(ids[:-1], ids[1:], Scored(False, None, case.steps), None)
        v, into = torch.randn(size, generator=generator), torch.zeros(size)

        def opened(memory: str, block: Block = block) -> NativeChunk:
            chunk, reason = open_chunk(
                case.architecture, flat, block, Way(case.precision, memory, clock.threads)
            )
            assert chunk is not None, reason
            return chunk

        def whole_gradient(into: Tensor = into) -> None:
            chunk = opened("recomputed")  # forward and backward tile by tile: the three passes of a gradient
            chunk.gradient(into)

        kept: list[NativeChunk] = []
        timed("forward", lambda: kept.append(opened("stored")))  # noqa: B023  # run at once
        timed("product", lambda: kept[0].product(v, into))  # noqa: B023
        timed("damped product", lambda: kept[0].product(v, into, Structural(0.1)))  # noqa: B023
        kept.clear()
        timed("gradient", whole_gradient)
        kept.append(opened("recomputed"))
        timed("recomputed product", lambda: kept[0].product(v, into))  # noqa: B023
        kept.clear()
        if turn == 0:
            for row in rows.values():
                row.seconds.clear()
                row.of_peak.clear()
    return list(rows.values())


def streams(clock: Clock) -> dict[str, float]:
    """Characters a second of one stream."""
    torch.set_num_threads(clock.threads)
    model = rn.RecurrentModel("mlstm", (170,), SYMBOLS, SYMBOLS)
    stream = model.stream()
    assert stream is not None
    ids = torch.randint(SYMBOLS, (20_000,), generator=torch.Generator().manual_seed(0))
    rates: dict[str, float] = {}

    def rate(name: str, count: int, run: Callable[[], object]) -> None:
        began = clock.now()
        run()
        rates[name] = count / (clock.now() - began)

    rate("evaluation, mLSTM-170", len(ids), lambda: stream.read(ids))
    allowed = torch.ones(SYMBOLS, dtype=torch.bool)
    levels = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tolist()
    rate("sampling, mLSTM-170", len(levels), lambda: [stream.write(x, allowed, 1.0) for x in levels])
    from rnnewton.lab.lstm_online import OnlineLearner

    learner = OnlineLearner(rn.RecurrentModel("lstm", (195,), SYMBOLS, SYMBOLS), rate=0.01)
    line = ids[:10_001, None]
    rate("lstm-online, LSTM-195", 10_000, lambda: learner.read(line[:-1], line[1:]))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unavailable() is not None:
        sys.exit(f"there are no native kernels here: {unavailable()}")
    chosen = [(name, *MODELS[name], options.steps) for name in options.models]
    if options.large:
        chosen += [(name, *rest) for name, rest in LARGE.items()]
    clock = Clock(options.clock, options.threads)
    found: list[dict[str, object]] = []
    for name, cell, hidden, steps in chosen:
        for precision in options.precision:
            architecture = Architecture(cell, hidden, SYMBOLS, SYMBOLS)
            case = Case(name, architecture, steps, options.sequences, precision)
            for row in measure(case, options.rounds, clock):
                seconds, share = statistics.median(row.seconds), statistics.median(row.of_peak)
                gflops = case.operations(row.passes) / seconds / 1e9
                found.append(
                    {
                        "model": name,
                        "precision": precision,
                        "what": row.what,
                        "sequences": options.sequences,
                        "steps": steps,
                        "seconds": seconds,
                        "gflops": gflops,
                        "of_peak": share,
                    }
                )
                if not options.json:
                    print(
                        f"{name:18s} {precision} {row.what:19s} {seconds * 1e3:8.1f} ms"
                        f" {gflops:7.0f} GFLOP/s {share:6.2f} of the peak",
                        flush=True,
                    )
    rates = streams(Clock(options.clock, 1))
    if options.json:
        print(json.dumps({"passes": found, "characters_per_second": rates}, indent=1))
    else:
        for name, rate in rates.items():
            print(f"{name:24s} {rate:10.0f} characters/s")


if __name__ == "__main__":
    main()
