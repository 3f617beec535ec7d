"""Whatever happened to a run folder, every command that reads one answers in a sentence, never with a
traceback.
"""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rnnewton.cli import main

TEXT = "the quick brown fox jumps over the lazy dog. " * 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    (folder / "text.txt").write_text(TEXT)
    words = ["--hidden", "4", "--steps", "2", "--threads", "1", "--length", "20"]
    assert main(["train", str(folder / "text.txt"), "--run", str(folder / "run"), *words]) == 0
    return folder / "run"


FILES = [
    "config.toml",
    "metrics.jsonl",
    "done.json",
    "checkpoints/index.json",
    *(
        f"checkpoints/step-000002/{name}"
        for name in (
            "checkpoint.json",
            "model.json",
            "weights.safetensors",
            "state.json",
            "state.safetensors",
        )
    ),
]
COMMANDS = [
    ["compare", "RUN"],
    ["sample", "RUN", "--length", "5"],
    ["evaluate", "RUN"],
    ["train", "--run", "RUN"],
    ["train", "--run", "RUN", "--steps", "3"],
]


def damaged(content: bytes, harm: str, at: float, junk: bytes) -> bytes:
    place = int(at * max(len(content) - 1, 0))
    if harm == "cut":
        return content[:place]
    if harm == "replace":
        return junk
    if harm == "insert":
        return content[:place] + junk + content[place:]
    return content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1 :] if content else b""


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    name=st.sampled_from(FILES),
    command=st.sampled_from(COMMANDS),
    harm=st.sampled_from(["cut", "replace", "insert", "flip", "remove"]),
    at=st.floats(0, 1),
    junk=st.binary(max_size=20)
    | st.sampled_from([b"{}", b"[]", b"null", b"1", b'"x"', b"[model]\nhidden = [3]\n"]),
)
def test_no_traceback_ever(
    run: Path, tmp_path: Path, name: str, command: list[str], harm: str, at: float, junk: bytes
) -> None:
    copy = tmp_path / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    file = copy / name
    if harm == "remove":
        file.unlink()
    else:
        file.write_bytes(damaged(file.read_bytes(), harm, at, junk))
    assert main([str(copy) if word == "RUN" else word for word in command]) in (0, 2)
