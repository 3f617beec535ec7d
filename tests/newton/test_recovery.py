"""What a run does when its steps come to nothing, by hand."""

import rnnewton as rn
from rnnewton.newton.recovery import recovered
from rnnewton.newton.settings import RecoverySettings
from rnnewton.newton.step import Memory

SETTINGS = RecoverySettings(after=2)
NOW, THEN = rn.Tikhonov(5.0), rn.Tikhonov(0.1)


def memory(**fields):
    return Memory(NOW, THEN, **fields)


def test_a_good_step_clears_the_count_and_marks_its_damping_as_working():
    new, sentence = recovered(memory(failures=1), 1.0, 0.01, SETTINGS)
    assert (new.failures, new.worked, sentence) == (0, NOW, None)


def test_a_step_that_wins_little_clears_the_count_and_marks_nothing():
    """Otherwise a damping that creeps up while steps shrink would pass for one that works."""
    new, _ = recovered(memory(failures=1), 1.0, 1e-4, SETTINGS)
    assert (new.failures, new.worked) == (0, THEN)


def test_refused_cut_and_empty_steps_count():
    for step_size, gain in ((0.0, 0.0), (0.01, 0.1), (1.0, 1e-9)):
        new, sentence = recovered(memory(), step_size, gain, SETTINGS)
        assert (new.failures, new.damping, sentence) == (1, NOW, None)


def test_recovery_goes_back_to_what_worked_and_next_time_beyond_it():
    new, sentence = recovered(memory(failures=1), 0.0, 0.0, SETTINGS)
    assert "2 steps in a row" in sentence
    assert (new.damping, new.worked, new.last, new.failures) == (THEN, THEN.grown(), None, 0)
    assert new.widening == 2.0


def test_more_curvature_has_an_end_and_goes_again():
    widest, _ = recovered(memory(failures=1, widening=SETTINGS.widest), 0.0, 0.0, SETTINGS)
    assert widest.widening == SETTINGS.widest
    eased, _ = recovered(memory(widening=2.0), 1.0, 0.01, SETTINGS)
    assert eased.widening == 1.8
    assert recovered(memory(widening=1.05), 1.0, 0.01, SETTINGS)[0].widening == 1.0
