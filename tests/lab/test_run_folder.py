"""The run folder: its lock, its metrics, and which checkpoint is taken."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnewton.lab.checkpoint import Summary
from rnnewton.lab.run_folder import RunFolder
from rnnewton.text.errors import UserError


def write_model(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(b"weights")


def save(run: RunFolder, step: int, best: int | None) -> None:
    run.save_checkpoint(Summary(step, None, best), write_model, {"step": step})


def test_newest_previous_and_best_are_kept(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step, best in ((0, None), (1, 1), (2, 2), (3, 2), (4, 2), (5, 5)):
        save(run, step, best)
    # 4 still knows 2 as its best: if 5 turns out damaged, nothing that 4 hands over is missing.
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "index.json",
        "step-000002",
        "step-000004",
        "step-000005",
    ]
    said: list[str] = []
    newest, best = run.newest(said.append), run.best(said.append)
    assert newest is not None and newest.summary.step == 5 and best is not None and best.summary.step == 5
    assert said == []


def test_a_damaged_newest_checkpoint_gives_way_with_a_warning(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2, 3):
        save(run, step, 1)
    (run.checkpoints / "step-000003" / "state.json").write_text("{")
    said: list[str] = []
    newest = run.newest(said.append)
    assert newest is not None and newest.summary.step == 2
    assert len(said) == 1 and "step-000003 is damaged" in said[0]
    save(run, 3, 1)  # the run does the step again, in the damaged one's place
    again = run.newest(said.append)
    assert again is not None and again.summary.step == 3 and len(said) == 1


def test_metrics_are_cut_to_a_step_and_never_doubled(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2, 3):
        run.append({"step": step, "loss": 1 / step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # the process was killed here
    assert [each["step"] for each in run.read_metrics()] == [1, 2, 3]
    run.cut_metrics(2)
    run.append({"step": 3, "loss": 1 / 3})
    assert [each["step"] for each in run.read_metrics()] == [1, 2, 3]
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 3


HOLD = """
import sys, time
from pathlib import Path
from rnnewton.lab.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_live_lock_refuses_and_a_stale_one_is_taken(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        with pytest.raises(UserError, match=f"in use by process {holder.pid}"), RunFolder(tmp_path).locked():
            pass
    finally:
        holder.kill()
        holder.wait()
    assert (tmp_path / ".lock").is_file()  # left by the killed process
    with RunFolder(tmp_path).locked():
        pass


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["config.toml", "metrics.jsonl", "done.json"]),
    content=st.one_of(st.binary(max_size=80), st.text(max_size=40).map(str.encode), st.just(b"[" * 100_000)),
)
def test_any_content_is_read_or_the_users_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    run = RunFolder(tmp_path_factory.mktemp("run"))
    (run.path / name).write_bytes(content)
    reader = {"config.toml": run.read_config, "metrics.jsonl": run.read_metrics, "done.json": run.read_done}[
        name
    ]
    try:
        reader()
    except UserError as error:
        assert str(run.path) in str(error)


def test_documents_are_whole(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_config({"model": {"hidden": [3]}})
    run.write_done({"step": 3})
    assert run.read_config() == {"model": {"hidden": [3]}} and run.read_done() == {"step": 3}
    run.remove_done()
    assert run.read_done() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml"]
