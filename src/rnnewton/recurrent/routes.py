"""Which of torch's ways to multiply float32 matrices on a CPU is fastest here: measured once per machine.

model.route = fastest_route(cache_file)      # before linearising; keep model.route with a run that must be
                                             # resumed bit for bit, for routes round differently
"""

import json
import platform
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from rnnewton.recurrent.matrices import ROUTES, Arithmetic, onednn_takes

SHAPE = (512, 170, 680)  # rows, columns, gates: the recurrence of the thesis's mLSTM
MARGIN = 1.1  # another route than the plain one must be this much faster


def fastest_route(cache: str | Path | None = None) -> str:
    """The name for `model.route`. With a file, it is measured only once per machine."""
    path, machine = None if cache is None else Path(cache), describe_machine()
    known = _read(path)
    if machine in known:
        return known[machine]
    speeds = measure_routes()
    best = max(speeds, key=lambda route: speeds[route])
    route = best if speeds[best] > MARGIN * speeds["plain"] else "plain"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps({**known, machine: route}, indent=1))
        temporary.replace(path)
    return route


def measure_routes(rounds: int = 9, repeats: int = 20) -> dict[str, float]:
    """GFLOP/s of every route that this torch has, in interleaved rounds."""
    rows, columns, gates = SHAPE
    random = torch.Generator().manual_seed(0)
    weight, x, base = (
        torch.randn(shape, generator=random) for shape in ((gates, columns), (rows, columns), (rows, gates))
    )
    matrices = {
        route: Arithmetic(torch.float32, in_place=True, route=route).matrix(weight)
        for route in ROUTES
        if route == "plain" or onednn_takes(weight)
    }
    seconds: dict[str, list[float]] = {route: [] for route in matrices}
    with torch.no_grad():
        for _ in range(rounds):
            for route, matrix in matrices.items():
                begin = perf_counter()
                for _ in range(repeats):
                    matrix.back(matrix.onto(base.zero_(), x))
                seconds[route].append(perf_counter() - begin)
    work = 2 * 2 * rows * columns * gates * repeats / 1e9
    return {route: work / median(times) for route, times in seconds.items()}


def describe_machine() -> str:
    """What the choice depends on: processor, vector width, threads and torch."""
    return ", ".join(
        (
            platform.processor() or platform.machine(),
            _processor_name(),
            torch.backends.cpu.get_cpu_capability(),
            f"{torch.get_num_threads()} threads",
            f"torch {torch.__version__}",
        )
    )


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unnamed processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unnamed")


def _read(path: Path | None) -> dict[str, str]:
    """What a cache file says; one that cannot be read says nothing and is written anew."""
    if path is None:
        return {}
    try:
        known: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {machine: route for machine, route in dict(known).items() if route in ROUTES}
