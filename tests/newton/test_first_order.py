"""First-order companions, by hand on a module with one weight and against torch on a recurrent model."""

import json
import math

import pytest
import torch
from torch import nn

import rnnewton as rn
from rnnewton.newton.first_order import RULES, FirstOrder, FirstOrderSettings


class OneWeight(nn.Module):
    """f(w) = w²/2 as a module that linearises itself: its gradient is w."""

    def __init__(self, start=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def mean_loss(self, inputs, targets, **options):
        return 0.5 * self.w.detach().double().square().sum()

    def linearize(self, inputs, targets, **options):
        module = self

        class Point:
            loss = module.mean_loss(inputs, targets)
            count = inputs.numel()

            def gradient(self):
                return module.w.detach().clone()

        return Point()


BATCH = torch.zeros(3, 2), torch.zeros(3, 2)


def path(steps, **settings):
    module = OneWeight()
    optimizer = FirstOrder(module, settings=FirstOrderSettings(**settings))
    values = []
    for _ in range(steps):
        optimizer.step(BATCH)
        values.append(float(module.w.detach()))
    return values


def test_descent_by_hand():
    assert path(3, rule="descent", rate=0.5) == pytest.approx([0.5, 0.25, 0.125])


def test_classical_momentum_by_hand():
    """v ← 0.5 v − 0.1 w: w = 1, then 0.9, then 0.9 − 0.05 − 0.09 = 0.76."""
    assert path(2, rule="momentum", rate=0.1, momentum=0.5) == pytest.approx([0.9, 0.76])


def test_nesterov_momentum_by_hand():
    """v₁ = −0.1, w₁ = 1 + 0.5·v₁ − 0.1 = 0.85; v₂ = −0.05 − 0.085, w₂ = 0.85 + 0.5·v₂ − 0.085 = 0.6975."""
    assert path(2, rule="nesterov", rate=0.1, momentum=0.5) == pytest.approx([0.85, 0.6975])


def test_clipping_shortens_the_gradient_to_its_bound():
    module = OneWeight(10.0)
    optimizer = FirstOrder(module, settings=FirstOrderSettings(rule="descent", rate=1.0, clip=2.0))
    report = optimizer.step(BATCH)
    assert float(module.w) == pytest.approx(8.0)
    assert report.gradient_norm == pytest.approx(10.0)


def model():
    return rn.RecurrentModel("lstm", (5,), 4, 4, init=rn.Normal(0.3))


def blocks(seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, (9, 6), generator=generator)
    return ids[:-1], ids[1:]


def test_adam_is_torch_s_own():
    ours, theirs = model(), model()
    optimizer = FirstOrder(ours, settings=FirstOrderSettings(rate=0.01))
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for step in range(5):
        optimizer.step(blocks(step))
        inputs, targets = blocks(step)
        reference.zero_grad()
        logits, _ = theirs(inputs)
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_learns_and_resumes_to_the_bit(rule):
    settings = FirstOrderSettings(rule=rule, rate=0.05, averaging=0.5, epoch_characters=48)
    module = model()
    optimizer = FirstOrder(module, settings=settings)
    first = optimizer.step(blocks())
    for _ in range(10):
        optimizer.step(blocks())
    saved, weights = optimizer.state_dict(), optimizer.problem.read()
    json.dumps({key: value for key, value in saved.items() if key not in ("slots", "average")})
    other = model()
    resumed = FirstOrder(other, settings=settings)
    resumed.problem.write(weights)
    resumed.load_state_dict(saved)
    for _ in range(5):
        last, again = optimizer.step(blocks()), resumed.step(blocks())
    assert torch.equal(optimizer.problem.read(), resumed.problem.read())
    assert torch.equal(optimizer.average, resumed.average)
    assert (again.step, again.work, again.characters) == (16, 16.0, 768)
    assert last.loss_before < first.loss_before


def test_a_schedule_sets_the_rate():
    optimizer = FirstOrder(OneWeight(), settings=FirstOrderSettings(rule="descent", rate=0.5))
    optimizer.rate = 0.25
    report = optimizer.step(BATCH)
    assert report.step_size == 0.25
    assert float(optimizer.problem.read()) == 0.75


def test_non_finite_gradients_leave_the_weights():
    module = OneWeight(math.inf)
    report = FirstOrder(module, settings=FirstOrderSettings(rule="descent")).step(BATCH)
    assert not report.accepted
    assert report.refused
    assert math.isinf(float(module.w))


def test_nonsense_is_refused():
    for fields in ({"rule": "magic"}, {"rate": 0.0}, {"clip": -1.0}):
        with pytest.raises(ValueError):
            FirstOrderSettings(**fields)
    with pytest.raises(ValueError, match="rule"):
        adam = FirstOrder(model(), settings=FirstOrderSettings())
        adam.load_state_dict(FirstOrder(model(), settings=FirstOrderSettings(rule="descent")).state_dict())
