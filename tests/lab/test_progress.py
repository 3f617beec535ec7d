"""What a person sees: lines for files, a live line for terminals, and never another result."""

import io
from typing import Any

import pytest
from rich.console import Console

from rnnewton.lab.configuration import changed
from rnnewton.lab.progress import Plain, TensorBoard, Terminal, clock, line_of
from rnnewton.lab.settings import Settings
from rnnewton.newton.descent import Tick
from rnnewton.text.errors import UserError

RECORD: dict[str, Any] = {
    "step": 3,
    "seconds": 75.0,
    "loss_before": 1.3862943611198906,
    "validation_bits": 2.25,
    "mu": 0.1,
    "lambda": None,
    "kappa": None,
    "cg_iterations": 7,
    "work_characters": 150_000.0,
    "accepted": True,
}


def test_a_line_says_what_a_person_wants() -> None:
    line = line_of(RECORD, {"seconds": 70.0, "work_characters": 100_000.0}, 30.0)
    for part in (
        "step    3",
        "1:15",
        "training 2.000",
        "validation 2.250",
        "mu 0.1",
        "cg   7",
        "10,000 characters/s",
        "0:30 left",
    ):
        assert part in line


def test_what_was_not_measured_is_left_out() -> None:
    line = line_of({"step": 1, "seconds": 1.0, "validation_bits": None}, None, None)
    assert "cg" not in line and "left" not in line and "mu" not in line


def test_clock() -> None:
    assert [clock(5), clock(65), clock(3661)] == [" 0:05", " 1:05", "1:01:01"]


def test_plain_lines_have_no_ticks() -> None:
    said: list[str] = []
    plain = Plain(said.append)
    plain.started(changed(Settings(), {"steps": 10}), 2, 50.0)
    plain.ticked(Tick(3, 1, 7, -0.1, 0.5))
    plain.stepped({**RECORD, "recovery": "warm start dropped"})
    plain.ended()
    assert (
        said[0] == "going on after step 2." and "step    3" in said[1] and said[2] == "  warm start dropped"
    )
    assert "left" in said[1]  # seven steps as long as the last one


def test_a_terminal_shows_iterations_and_takes_them_away() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    terminal = Terminal(console)
    terminal.started(changed(Settings(), {"seconds": 100.0}), 0, 0.0)
    terminal.ticked(Tick(1, 7, 7, -0.25, 0.5))
    terminal.stepped(RECORD)
    terminal.ended()
    shown = stream.getvalue()
    assert "7/7" in shown and "q -0.25" in shown and "validation 2.250" in shown


def test_tensorboard_is_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install"):
        TensorBoard(Plain(lambda line: None), tmp_path)


def test_tensorboard_gets_the_scalars(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import sys
    from types import SimpleNamespace

    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            written.append((folder, 0.0, purge_step))

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written.append((tag, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    said: list[str] = []
    watcher = TensorBoard(Plain(said.append), tmp_path)
    watcher.started(Settings(), 2, 0.0)
    watcher.stepped(RECORD)
    watcher.ended()
    assert written[0] == (str(tmp_path), 0.0, 3)  # what was done after step 2 is written again
    assert ("validation_bits", 2.25, 3) in written and written[-1][0] == "closed"
    assert len(said) == 2
