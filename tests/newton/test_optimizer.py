"""The optimiser's face on small recurrent models: contract, interruption, resuming."""

import json
import math

import pytest
import torch
from torch import nn

import rnnewton as rn
from rnnewton.newton.damping import Metric
from rnnewton.newton.preconditioning import Identity, Kronecker, Krylov
from rnnewton.newton.settings import ConjugateGradientSettings, CurvatureSettings, HessianFreeSettings

CONTRACT = [
    *("step", "seconds", "work", "characters"),
    *("loss_before", "loss_after", "validation_bits", "mu", "lambda"),
    *("p", "cg_iterations", "cg_reason", "step_size", "accepted", "products"),
]
SHORT = HessianFreeSettings(cg=ConjugateGradientSettings(iterations=6), averaging=0.9)


def model(cell="rnn", seed=0, **options):
    return rn.RecurrentModel(cell, (6,), 5, 5, seed=seed, init=rn.Normal(0.5), **options)


def batch(sequences=8, steps=10, seed=0):
    """A text in which every symbol follows from the one before it, but for noise."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(steps + 1, sequences, dtype=torch.int64)
    ids[0] = torch.randint(5, (sequences,), generator=generator)
    for t in range(steps):
        noise = (torch.rand(sequences, generator=generator) < 0.2).long()
        ids[t + 1] = (2 * ids[t] + 1 + noise) % 5
    return ids[:-1], ids[1:]


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


DAMPINGS = {
    "default": None,
    "structural+tikhonov": rn.Structural(0.1) + rn.Tikhonov(0.01),
    "tikhonov": rn.Tikhonov(0.01),
    "line-search": rn.LineSearch(0.8),
}


@pytest.mark.parametrize("cell", ["rnn", "lstm", "mrnn", "mlstm"])
@pytest.mark.parametrize("name", DAMPINGS)
def test_every_damping_trains_every_cell(cell, name):
    net = model(cell)
    optimizer = rn.HessianFree(net, damping=DAMPINGS[name])
    reports = [optimizer.step(batch(seed=0)) for _ in range(12)]
    assert reports[-1].loss_after < 0.8 * reports[0].loss_before
    assert all(r.loss_after < r.loss_before for r in reports if r.accepted)
    assert reports[-1].loss_after == pytest.approx(float(net.mean_loss(*batch(seed=0))))


def test_the_report_has_the_contract_s_keys_and_is_json():
    optimizer = rn.HessianFree(model(), damping=rn.Structural(0.1) + rn.Tikhonov(0.01))
    line = json.loads(json.dumps(optimizer.step(batch()).as_dict(), allow_nan=False))
    assert list(line)[: len(CONTRACT)] == CONTRACT
    assert (line["step"], line["mu"], line["lambda"]) == (1, 0.1, 0.01)
    assert line["validation_bits"] is None
    assert line["work"] is None
    assert line["characters"] == 80
    with pytest.raises(AttributeError):
        optimizer.step(batch()).step = 3


def test_work_counts_epochs_of_gradient_and_adds_up():
    settings = HessianFreeSettings(epoch_characters=160)
    optimizer = rn.HessianFree(model(), settings=settings)
    first, second = optimizer.step(batch()), optimizer.step(batch(seed=1))
    assert first.work == pytest.approx(first.work_characters / 160)
    assert second.work_characters == pytest.approx(first.work_characters + second.step_work_characters)
    assert (second.step, second.characters) == (2, 160)


def test_a_list_of_chunks_is_one_batch():
    whole, parts = model().double(), model().double()  # conjugate gradient magnifies rounding
    inputs, targets = batch()
    one = rn.HessianFree(whole, damping=rn.Tikhonov(0.01)).step((inputs, targets))
    chunks = [(inputs[:, :3], targets[:, :3]), (inputs[:, 3:], targets[:, 3:])]
    two = rn.HessianFree(parts, damping=rn.Tikhonov(0.01)).step(chunks)
    assert two.loss_before == pytest.approx(one.loss_before, rel=1e-6)
    assert torch.allclose(flat(whole), flat(parts), atol=1e-3)


def test_curvature_batch_none_is_the_whole_of_a_small_batch_and_a_share_of_a_large_one():
    small = rn.HessianFree(model()).step(batch())
    assert small.curvature_scored == small.gradient_scored == 80
    settings = HessianFreeSettings(
        cg=ConjugateGradientSettings(iterations=1), curvature=CurvatureSettings(fraction=0.25)
    )
    large = rn.HessianFree(model(), settings=settings).step(batch(sequences=100, steps=100))
    assert (large.gradient_scored, large.curvature_scored) == (10_000, 2500)


def test_a_batch_scored_at_the_last_step_only():
    optimizer = rn.HessianFree(model(), damping=rn.Structural(0.1) + rn.Tikhonov(0.01))
    report = optimizer.step((*batch(), "last"))
    assert (report.gradient_scored, report.characters) == (8, 80)
    assert report.accepted


def test_frozen_parameters_do_not_move():
    net = model()
    net.get_parameter("layers.0.W_hh").requires_grad_(False)
    before = net.get_parameter("layers.0.W_hh").clone()
    optimizer = rn.HessianFree(net)
    assert optimizer.step(batch()).accepted
    assert torch.equal(net.get_parameter("layers.0.W_hh"), before)


def test_train_mode_and_gradients_are_left_alone():
    net = model().eval()
    rn.HessianFree(net).step(batch())
    assert not net.training
    assert all(p.grad is None for p in net.parameters())


def test_float64_and_reduced_precision_train():
    net = model().double()
    assert rn.HessianFree(net).step(batch()).accepted
    settings = HessianFreeSettings(passes=type(SHORT.passes)(precision="bf16"))
    report = rn.HessianFree(model(), damping=rn.Tikhonov(0.1), settings=settings).step(batch())
    assert report.accepted
    assert report.loss_before == pytest.approx(float(model().mean_loss(*batch())), abs=1e-9), (
        "in the model's own precision"
    )


def make(kind):
    net = model("lstm")
    if kind == "kronecker":
        return net, rn.HessianFree(net, settings=HessianFreeSettings.small_batch(), seed=3)
    preconditioner = {"krylov": Krylov(), "none": Identity()}[kind]
    damping = rn.Structural(0.1, watch=2) + rn.Tikhonov(0.01)
    return net, rn.HessianFree(net, damping=damping, preconditioner=preconditioner, settings=SHORT, seed=3)


def scalars_through_json(state):
    """What a checkpoint does: tensors to one file, everything else to JSON."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        assert all(isinstance(key, str) for key in state)
        return {key: scalars_through_json(value) for key, value in state.items()}
    if isinstance(state, list):
        return [scalars_through_json(value) for value in state]
    return json.loads(json.dumps(state, allow_nan=False))


BATCHES = [batch(sequences=120, steps=100, seed=s) for s in range(5)]


@pytest.mark.parametrize("kind", ["kronecker", "krylov", "none"])
def test_a_resumed_run_goes_on_to_the_bit(kind):
    """Subsets are drawn at random, targets are sampled, averages and warm starts carried: all of it must come
    back.
    """
    net, optimizer = make(kind)
    for step in range(2):
        optimizer.step(BATCHES[step], iterations=3)
    saved, weights = scalars_through_json(optimizer.state_dict()), flat(net)
    for step in range(2, 4):
        optimizer.step(BATCHES[step], iterations=3)
    other, resumed = make(kind)
    resumed.problem.write(weights)
    resumed.load_state_dict(saved)
    for step in range(2, 4):
        report = resumed.step(BATCHES[step], iterations=3)
    assert report.step == 4
    assert torch.equal(flat(net), flat(other))
    assert torch.equal(optimizer.average, resumed.average)
    assert optimizer.damping == resumed.damping


class Killer:
    """Counts linearisations, products and losses of a model, and breaks off at one of them."""

    def __init__(self, net, at):
        self.count, self.at = 0, at
        linearize, mean_loss = net.linearize, net.mean_loss

        def counted_linearize(*args, **options):
            self.tick()
            point = linearize(*args, **options)
            product = point.gauss_newton

            def counted(*a, **o):
                self.tick()
                return product(*a, **o)

            point.gauss_newton = counted
            return point

        def counted_loss(*args, **options):
            self.tick()
            return mean_loss(*args, **options)

        net.linearize, net.mean_loss = counted_linearize, counted_loss

    def tick(self):
        self.count += 1
        if self.count == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["kronecker", "none"])
def test_killed_at_any_operation_the_run_goes_on_to_the_bit(kind):
    """The step after an interrupted one is the step that was interrupted, in the same process or in
    another.
    """
    batches = [batch(seed=s) for s in range(3)]
    net, optimizer = make(kind)
    counter = Killer(net, at=-1)
    for b in batches:
        optimizer.step(b)
    expected, operations = flat(net), counter.count
    killed = 0
    for at in range(1, operations + 1, 3):
        net, optimizer = make(kind)
        Killer(net, at=at)
        done = 0
        while done < len(batches):
            before = flat(net)
            try:
                optimizer.step(batches[done])
                done += 1
            except KeyboardInterrupt:
                killed += 1
                assert torch.equal(flat(net), before)
        assert torch.equal(flat(net), expected)
    assert killed >= operations // 3


def test_subscribers_see_every_iteration_and_change_nothing():
    quiet, loud = model(), model()
    rn.HessianFree(quiet, damping=rn.Tikhonov(0.1)).step(batch())
    optimizer = rn.HessianFree(loud, damping=rn.Tikhonov(0.1))
    ticks = []
    end = optimizer.subscribe(ticks.append)
    report = optimizer.step(batch())
    assert [t.iteration for t in ticks] == list(range(1, report.cg_iterations + 1))
    assert torch.equal(flat(quiet), flat(loud))
    end()
    optimizer.step(batch())
    assert len(ticks) == report.cg_iterations


def test_averaged_weights_are_swapped_in_and_out():
    net = model()
    optimizer = rn.HessianFree(net)
    optimizer.step(batch())
    first = flat(net)
    assert torch.equal(optimizer.average, first)
    optimizer.step(batch())
    last = flat(net)
    with pytest.raises(ZeroDivisionError), optimizer.averaged():
        assert torch.allclose(flat(net), (0.9 * first + last) / 1.9, atol=1e-6)
        raise ZeroDivisionError
    assert torch.equal(flat(net), last)


def test_noise_is_measured_at_no_cost():
    plain, halved = model(), model()
    one = rn.HessianFree(plain, damping=rn.Tikhonov(0.1)).step(batch())
    settings = HessianFreeSettings(measure_noise=True)
    two = rn.HessianFree(halved, damping=rn.Tikhonov(0.1), settings=settings).step(batch())
    assert two.loss_before == pytest.approx(one.loss_before, rel=1e-6)
    assert two.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)
    assert one.gradient_noise is None
    assert two.gradient_noise > 0


def test_the_noise_is_the_variance_of_the_mean_gradient():
    """Over many draws, |g_batch − g_all|² averages to the noise times |g|²."""
    net = model()
    everything = batch(sequences=4000, steps=4)
    exact = net.linearize(*everything).gradient().double()
    estimates, truths = [], []
    settings = HessianFreeSettings(measure_noise=True, cg=ConjugateGradientSettings(iterations=1))
    for k in range(30):
        index = torch.arange(k * 40, (k + 1) * 40)
        part = everything[0][:, index], everything[1][:, index]
        report = rn.HessianFree(model(), damping=rn.Tikhonov(1.0), settings=settings, seed=k).step(part)
        estimates.append(report.gradient_noise * report.gradient_norm**2)
        truths.append(float((net.linearize(*part).gradient().double() - exact).norm() ** 2))
    assert sum(estimates) == pytest.approx(sum(truths), rel=0.3)


def test_memory_budget_changes_nothing_but_rounding():
    inputs, targets = batch(sequences=40)
    results = []
    for memory in ("stored", "recomputed", 20_000):
        net = model("mlstm").double()
        settings = HessianFreeSettings(
            cg=ConjugateGradientSettings(iterations=5), passes=type(SHORT.passes)(memory=memory)
        )
        rn.HessianFree(net, damping=rn.Tikhonov(0.1), settings=settings).step((inputs, targets))
        results.append(flat(net))
    assert torch.allclose(results[0], results[1], atol=1e-10)
    assert torch.allclose(results[0], results[2], atol=1e-10)


@pytest.mark.parametrize(
    ("make_error", "words"),
    [
        (lambda: rn.HessianFree(model().parameters()), "the module itself"),
        (lambda: rn.HessianFree(model(), nn.MSELoss()), "own loss"),
        (lambda: rn.HessianFree(nn.Linear(2, 2)), "needs a loss"),
        (lambda: rn.HessianFree(model()).step(lambda: None), "not a closure"),
        (lambda: rn.HessianFree(model()).step([]), "empty"),
        (lambda: rn.HessianFree(model()).step([1, 2]), "tuple"),
        (lambda: rn.HessianFree(model()).step((batch()[0],)), "tuple"),
        (lambda: rn.HessianFree(model()).add_param_group({"params": []}), "no parameter groups"),
        (
            lambda: rn.HessianFree(model(), damping=Metric(), preconditioner="none").step(batch()),
            "models the curvature",
        ),
        (lambda: rn.HessianFree(nn.Linear(2, 2), nn.MSELoss(), damping=rn.Structural(0.1)), "states="),
    ],
)
def test_errors_say_what_to_do(make_error, words):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=words):
        make_error()


def test_a_state_of_another_optimiser_is_refused():
    state = rn.HessianFree(model(), damping=rn.Tikhonov(0.1)).state_dict()
    with pytest.raises(ValueError, match="damped by tikhonov"):
        rn.HessianFree(model(), damping=rn.Structural(0.1)).load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        rn.HessianFree(model()).load_state_dict({})


def test_it_is_a_torch_optimiser():
    optimizer = rn.HessianFree(model())
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert len(optimizer.param_groups) == 1
    optimizer.zero_grad()


def test_defaults_follow_the_module_and_the_damping():
    assert isinstance(rn.HessianFree(model()).preconditioner, Kronecker)
    assert isinstance(rn.HessianFree(model()).damping, Metric)
    given = rn.HessianFree(model(), damping=rn.Structural(0.1) + rn.Tikhonov(0.01))
    assert isinstance(given.preconditioner, Identity)
    assert given.settings.cg.iterations == 100
    assert math.isclose(given.settings.cg.tolerance, 5e-4)


def test_frozen_weights_of_a_recurrent_model_stay_whatever_preconditions() -> None:
    """One Kronecker block holds the rows of a cell's input and of its gates: a solve mixes them."""
    net = model("lstm")
    frozen = net.get_parameter("layers.0.W_hi").requires_grad_(False)
    before, moving = frozen.clone(), net.get_parameter("layers.0.W_input_i").clone()
    optimizer = rn.HessianFree(net)
    assert [optimizer.step(batch()).accepted for _ in range(2)] == [True, True]
    assert torch.equal(frozen, before)
    assert not torch.equal(net.get_parameter("layers.0.W_input_i"), moving)


def test_the_default_dtype_of_others_changes_nothing() -> None:
    """Targets drawn for the preconditioner come from the generator alone."""
    ends, given = [], batch()
    for dtype in (torch.float32, torch.float64):
        net = model("lstm").float()
        optimizer = rn.HessianFree(net)
        kept = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            optimizer.step(given)
        finally:
            torch.set_default_dtype(kept)
        ends.append(optimizer.problem.read())
    assert torch.equal(*ends)
