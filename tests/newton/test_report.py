"""A report as one line of JSON."""

import dataclasses
import json
import math

import pytest

from rnnewton.newton.report import Meter, StepReport, TracePoint


def test_a_line_has_lambda_and_nulls_and_no_infinities():
    report = StepReport(step=1, seconds=2.0, lambda_=0.1, p=-math.inf, loss_after=math.nan)
    line = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert line["lambda"] == 0.1
    assert "lambda_" not in line
    assert (line["p"], line["loss_after"], line["validation_bits"]) == (None, None, None)
    assert len(line) == len(dataclasses.fields(StepReport))


def test_the_trace_is_a_list_of_its_points():
    trace = (TracePoint(1, -0.5, 0.1, p=math.inf),)
    line = json.loads(json.dumps(StepReport(step=1, seconds=0.0, trace=trace).as_dict(), allow_nan=False))
    assert line["trace"][0]["q"] == -0.5
    assert line["trace"][0]["p"] is None


def test_reports_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        StepReport(step=1, seconds=0.0).step = 2  # type: ignore[misc]


def test_the_meter_counts_in_gradients_per_character():
    """60 for the gradient, 20 for a loss on 60, 2 products of 4/3 on 30, 2/3 of 30 for a slope, half of 30
    for something else."""
    meter = Meter()
    meter.gradient(60)
    meter.loss(60)
    meter.products("conjugate gradient", 2, 30)
    meter.slope(30)
    meter.other(0.5, 30)
    assert meter.work == pytest.approx(60 + 20 + 80 + 20 + 15)
    assert meter.losses == 1
    with meter.part("x"), meter.part("y"):
        pass
    with meter.part("x"):
        pass
    assert set(meter.seconds_of) == {"x", "y"}
