"""The thesis's experiments: its parameter counts, and two steps of each on a few kilobytes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rnnewton.lab.building import build, parameters
from rnnewton.lab.choices import Facts, resolve
from rnnewton.lab.configuration import changed
from rnnewton.lab.learner import Task, learner_of
from rnnewton.lab.presets import find, presets
from rnnewton.lab.scoring import lanes
from rnnewton.lab.settings import Settings
from rnnewton.text.corpus import CorpusSettings, read_corpus
from rnnewton.text.errors import UserError

NAMES = [
    "rnn-structural",
    "rnn-line-search",
    "mrnn-structural",
    "mrnn-line-search",
    "lstm",
    "lstm-online",
    "stacked-mrnn",
    "mlstm",
    "mlstm-mu-0.3",
    "penn-medium",
    "penn-large",
    "wikipedia-structural",
    "wikipedia-line-search",
]


def test_all_names_are_there() -> None:
    assert list(presets()) == [f"thesis/{name}" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_thesis_counts_its_parameters_alike(name: str) -> None:
    preset = find(f"thesis/{name}")
    assert parameters(preset.settings, preset.printed.symbols) == preset.printed.parameters


def narrow(settings: Settings) -> Settings:
    """The same experiment with layers of a fifth of the width, at most 60 units, and less to read online."""
    hidden = tuple(min(width // 5, 60) for width in settings.model.hidden or ())
    reports = replace(settings.reports, report_every=100)
    return replace(settings, model=replace(settings.model, hidden=hidden), reports=reports)


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_on_a_few_kilobytes(name: str, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 60)
    corpus = read_corpus(CorpusSettings(str(file)))
    facts = Facts(len(corpus.training), len(corpus.alphabet), 1, 1 << 30)
    settings = resolve(narrow(find(f"thesis/{name}").settings), facts)
    assert settings.limits.patience == 5 and settings.reports.validate_every == 1
    model = build(settings, len(corpus.alphabet))
    task = Task(model, corpus.training, settings)
    scoring, problem = lanes(corpus.validation), task.problem()
    assert scoring is not None
    before = scoring.bits(problem, problem.read())
    learner = learner_of(task, lambda tick: None)
    reports = [learner.step(), learner.step()]
    assert [report.step for report in reports] == [1, 2]
    assert scoring.bits(problem, learner.weights) < before
    if name != "lstm-online":
        gradient = len(corpus.training) // task.length * task.length  # all whole sequences
        assert reports[1].characters == 2 * gradient


@pytest.mark.parametrize("name", ["penn-large", "wikipedia-structural"])
def test_the_large_ones_build_without_memory(name: str) -> None:
    preset = find(f"thesis/{name}")
    with torch.device("meta"):
        model = build(changed(preset.settings, {"device": "meta"}), preset.printed.symbols)
    assert sum(p.numel() for p in model.parameters()) == preset.printed.parameters


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="'thesis/penn-large'"):
        find("thesis/pen-large")
