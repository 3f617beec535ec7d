"""Models that linearise themselves as problems: chunks, subsets, borrowed weights."""

import pytest
import torch
from torch import nn

import rnnewton as rn
from rnnewton.newton.problem import LinearizableProblem, PassSettings, Problem, choose, loss_at, problem_of

from .problems import QuadraticProblem, random_quadratic


def model(**options):
    return rn.RecurrentModel("lstm", (4,), 6, 6, init=rn.Normal(0.4), **options)


def chunk(sequences, steps=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, (steps + 1, sequences), generator=generator)
    return ids[:-1], ids[1:]


def test_it_is_a_problem():
    assert isinstance(problem_of(model()), Problem)
    assert isinstance(problem_of(model()), LinearizableProblem)


def test_weights_go_round():
    problem = problem_of(model())
    flat = problem.read()
    problem.write(flat + 1)
    assert torch.equal(problem.read(), flat + 1)
    assert problem.size == flat.numel()


def test_counts():
    problem = problem_of(model())
    mask = torch.zeros(7, 3, dtype=torch.bool)
    mask[2:4] = True
    batch = [chunk(2), (*chunk(3), mask), (*chunk(4), "last")]
    assert problem.characters(batch) == 7 * 9
    assert problem.scored(batch) == 14 + 6 + 4
    assert problem.linearize(batch).count == 24
    assert problem_of(model(), passes=PassSettings(at="last")).scored(chunk(5)) == 5


def test_the_loss_elsewhere_leaves_no_trace():
    net = model()
    problem = problem_of(net)
    batch = chunk(5)
    point = problem.linearize(batch)
    flat = problem.read()
    elsewhere = loss_at(problem, flat + 0.1, batch)
    assert torch.equal(problem.read(), flat)
    point.gauss_newton(flat)  # raises when it thinks that the weights have moved
    problem.write(flat + 0.1)
    assert problem.loss(batch) == elsewhere
    with pytest.raises(RuntimeError):
        point.gauss_newton(flat)


def test_the_loss_elsewhere_gives_the_weights_back_when_it_fails():
    net = model()
    problem = problem_of(net)
    flat = problem.read()
    with pytest.raises((ValueError, TypeError, IndexError)):
        loss_at(problem, flat + 1, (torch.full((2, 2), 99), torch.full((2, 2), 99)))
    assert torch.equal(problem.read(), flat)
    quadratic = QuadraticProblem(*random_quadratic(3, 0))
    quadratic.fail_at = 1
    with pytest.raises(KeyboardInterrupt):
        loss_at(quadratic, torch.ones(3).double(), 1)
    assert torch.equal(quadratic.theta, torch.zeros(3).double())


def test_subsets_are_sequences_of_all_chunks_together():
    problem = problem_of(model())
    state = model().zero_state(60)
    marked = [part._replace(out=torch.arange(60.0)[:, None].expand(60, 4)) for part in state]
    first, second = chunk(40, steps=150), (*chunk(60, steps=150, seed=1), "every", marked)
    small = problem.subset([first, second], 0.25, torch.Generator().manual_seed(0))
    assert sum(part[0].shape[1] for part in small) == 25
    taken = small[1]
    rows = taken[3][0].out[:, 0].long()
    assert torch.equal(taken[0], second[0][:, rows]), "the states go with their sequences"
    assert torch.equal(taken[1], second[1][:, rows])
    assert type(taken[3][0]) is type(state[0])


def test_small_batches_and_whole_fractions_stay_whole():
    problem = problem_of(model())
    generator = torch.Generator().manual_seed(0)
    batch = chunk(99, steps=101)
    assert problem.scored(batch) == 9999
    assert problem.subset(batch, 0.1, generator) is batch
    big = chunk(100, steps=100)
    assert problem.subset(big, 1.0, generator) is big
    assert problem.subset(big, 0.1, generator)[0][0].shape[1] == 10


def test_masks_are_cut_with_their_sequences():
    problem = problem_of(model())
    mask = (torch.arange(200) % 2 == 0).expand(100, 200).contiguous()
    inputs, targets = chunk(200, steps=100)
    (cut,) = problem.subset((inputs, targets, mask), 0.5, torch.Generator().manual_seed(1))
    columns = [int((inputs == cut[0][:, [j]]).all(0).nonzero()[0]) for j in range(cut[0].shape[1])]
    assert torch.equal(cut[2], mask[:, columns])


def test_halves_are_a_partition():
    problem = problem_of(model())
    batch = chunk(9)
    one, two = problem.halves(batch, torch.Generator().manual_seed(0))
    both = torch.cat([one[0][0], two[0][0]], 1)
    assert sorted(map(tuple, both.t().tolist())) == sorted(map(tuple, batch[0].t().tolist()))
    assert problem.halves(chunk(1), torch.Generator()) is None


def test_choose_takes_at_least_one():
    generator = torch.Generator().manual_seed(0)
    assert len(choose(10, 0.01, generator)) == 1
    assert torch.equal(choose(3, 1.0, generator), torch.arange(3))


def test_frozen_parameters_have_no_gradient_and_no_curvature():
    net = model()
    free = problem_of(net).linearize(chunk(5))
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("W_oh" in name)
    frozen = problem_of(net).linearize(chunk(5))
    kept = torch.cat([torch.full((p.numel(),), float(p.requires_grad)) for p in net.parameters()])
    v = torch.randn(free.gradient().numel(), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(frozen.gradient(), free.gradient() * kept)
    assert torch.allclose(frozen.gauss_newton(v), free.gauss_newton(v * kept) * kept)
    net.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        problem_of(net)


def test_a_plain_module_has_no_precision_of_its_own():
    with pytest.raises(ValueError, match="its own dtype"):
        problem_of(nn.Linear(2, 2), nn.MSELoss(), PassSettings(precision="bf16"))
