"""What every suite shares: one thread, and the devices that are present."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("rnnewton", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("rnnewton")

DEVICES = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def pytest_report_header() -> str:
    absent = [name for name, present in DEVICES.items() if not present]
    return f"devices absent here, so not tested: {', '.join(absent) or 'none'}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", [name for name, present in DEVICES.items() if present])


@pytest.fixture(autouse=True)
def _same_state_for_every_test() -> Iterator[None]:
    """The same random numbers whatever ran before, and one thread: the suites share small machines."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
