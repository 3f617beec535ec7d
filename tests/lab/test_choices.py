"""What the program chooses: the same each time, fitting the text, and never against what was said."""

import pytest

from rnnewton.lab.building import parameters
from rnnewton.lab.choices import Facts, in_one_line, resolve
from rnnewton.lab.configuration import changed, flat
from rnnewton.lab.settings import Settings

MAY_STAY_OPEN = {
    "steps",
    "seconds",
    "text",
    "split",
    "alphabet",
    "merge",
    "digest",
    "bias",
    "forget_bias",
    "learning_rate",
    "batch",
    "report_every",
    "validate_every",
    "growth_work",
    "threads",
}
FACTS = Facts(characters=1_000_000, symbols=65, cores=2, memory=16 << 30)


@pytest.mark.parametrize("characters", [2, 50, 3_000, 300_000, 2_800_000, 100_000_000])
def test_nothing_is_left_open(characters: int) -> None:
    facts = Facts(characters, 65, 2, 16 << 30)
    settings = resolve(Settings(), facts)
    assert {name for name, value in flat(settings).items() if value is None} <= MAY_STAY_OPEN
    assert settings.limits.seconds is not None and 120 <= settings.limits.seconds <= 3600
    line = in_one_line(settings, facts)
    assert "mlstm" in line and "minutes" in line and "\n" not in line


def test_a_larger_text_and_a_longer_budget_make_wider_layers() -> None:
    def weights(characters: int, seconds: float) -> int:
        facts = Facts(characters, 65, 2, 16 << 30)
        return parameters(resolve(changed(Settings(), {"seconds": seconds}), facts), 65)

    assert (
        weights(10_000, 600)
        < weights(1_000_000, 600)
        <= weights(10_000_000, 600)
        < weights(10_000_000, 36_000)
    )
    assert weights(1_000_000, 10) < weights(1_000_000, 600)


def test_what_was_said_stays() -> None:
    given = {
        "hidden": (9,),
        "length": 33,
        "gradient_batch": "5000",
        "damping": "tikhonov:1",
        "steps": 3,
        "patience": 2,
    }
    settings = resolve(changed(Settings(), given), FACTS)
    values = flat(settings)
    assert {name: values[name] for name in given} == given
    assert values["seconds"] is None  # a limit was given
    assert values["final_gradient_batch"] == "5000"  # a batch that was given does not grow by itself


def test_a_damping_that_was_given_brings_no_metric() -> None:
    settings = resolve(changed(Settings(), {"damping": "structural:0.1"}), FACTS)
    assert settings.optimizer.preconditioner == "none" and settings.optimizer.damping == "structural:0.1"


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam"])
def test_first_order_settings_fit_the_text(name: str) -> None:
    settings = resolve(changed(Settings(), {"optimizer": name}), FACTS)
    optimizer, every = settings.optimizer, settings.reports.report_every
    assert optimizer.learning_rate and optimizer.batch and every
    assert every * optimizer.batch * (settings.sequences.length or 0) == pytest.approx(250_000, rel=0.05)
