"""Builds the native library with the system's C++ compiler at first use, and keeps it in a user cache folder.

The name of the built file is a hash of everything that it depends on: sources, flags, compiler and processor.
So nothing is built twice, and a folder shared between machines does no harm.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",  # a * b + c is one rounding wherever the processor can
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
)
WIDE = "-mprefer-vector-width=512"  # g++ on x86 would halve the vectors of its own loops otherwise
TIMEOUT = 600.0

Say = Callable[[str], None]
logger = logging.getLogger("rnnewton.kernels")


class BuildError(RuntimeError):
    """The native library cannot be had here; the message says why in one line."""


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str


def cache_folder() -> Path:
    """Where libraries are kept unless a folder is given: the user's cache, as the XDG standard names it."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "rnnewton" / "kernels"


def find_compiler() -> Compiler:
    for name in COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return Compiler(path, answer.stdout)
    raise BuildError(f"no C++ compiler was found (looked for {', '.join(COMPILERS)})")


def default_flags() -> tuple[str, ...]:
    return (*FLAGS, WIDE) if platform.machine() in ("x86_64", "AMD64") else FLAGS


def build(folder: Path | None = None, say: Say = logger.info, flags: tuple[str, ...] | None = None) -> Path:
    """The path of the built library; builds it if it is not there.

    Safe for several processes at once: each builds into a file of its own and moves it into place at once.
    """
    compiler = find_compiler()
    flags = default_flags() if flags is None else flags
    target = (folder or cache_folder()) / f"{_hash(compiler, flags)}.{_suffix()}"
    if target.exists():
        return target
    say(f"building the native kernels with {compiler.path} (once on this machine, some seconds) ...")
    started = time.perf_counter()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as work:
            made = Path(work) / target.name
            _compile([compiler.path, *flags, str(SOURCES / "native.cpp"), "-o", str(made)])
            made.replace(target)
    except OSError as error:
        raise BuildError(f"the native kernels cannot be built in {target.parent}: {error}") from error
    say(f"built in {time.perf_counter() - started:.1f} s: {target}")
    return target


def load(
    folder: Path | None = None, say: Say = logger.info, flags: tuple[str, ...] | None = None
) -> ctypes.CDLL:
    path = build(folder, say, flags)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the built native library does not load ({error}); delete {path}") from error


def _compile(command: list[str]) -> None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {TIMEOUT:.0f} s") from error
    if answer.returncode != 0:
        lines = [line for line in answer.stderr.splitlines() if "error" in line] or answer.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {lines[0].strip() if lines else 'no message'}")


def _hash(compiler: Compiler, flags: tuple[str, ...]) -> str:
    state = hashlib.sha256()
    for path in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"))):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    for text in (*flags, compiler.path, compiler.version, _processor()):
        state.update(text.encode() + b"\0")
    return state.hexdigest()[:24]


def _processor() -> str:
    """What -march=native depends on, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    keys = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in text.splitlines() if line.startswith(keys)}))


def _suffix() -> str:
    return "dylib" if sys.platform == "darwin" else "so"
