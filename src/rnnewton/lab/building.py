"""From settings to a network."""

import torch

from rnnewton.lab.settings import ModelSettings, Settings
from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.initialization import Normal, SparseNormal
from rnnewton.recurrent.layout import layout_of
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text.errors import UserError


def architecture(model: ModelSettings, symbols: int) -> Architecture:
    """What the settings say about the network, for an alphabet of so many symbols."""
    if model.hidden is None:
        raise ValueError("hidden is not chosen yet: see choices.py")
    return Architecture(
        cell=model.cell,
        hidden=model.hidden,
        inputs=symbols,
        outputs=symbols,
        direct_input=model.direct_input,
        direct_output=model.direct_output,
        bias=model.bias,
        output_bias=model.output_bias,
        squash_input=model.squash_input,
    )


def build(settings: Settings, symbols: int) -> RecurrentModel:
    """The network with its first weights, on the device of the settings."""
    model, name = settings.model, settings.machine.precision
    kind, _, deviation = model.init.partition(":")
    init = {"normal": Normal, "sparse": SparseNormal}[kind](float(deviation))
    return RecurrentModel(
        model.cell,
        model.hidden or (),
        symbols,
        symbols,
        direct_input=model.direct_input,
        direct_output=model.direct_output,
        bias=model.bias,
        output_bias=model.output_bias,
        squash_input=model.squash_input,
        forget_bias=model.forget_bias,
        init=init,
        seed=model.seed,
    ).to(device=device_of(settings.machine.device), dtype=torch.float64 if name == "fp64" else torch.float32)


def parameters(settings: Settings, symbols: int) -> int:
    """How many weights and biases the network has."""
    return layout_of(architecture(settings.model, symbols)).size


def device_of(name: str) -> torch.device:
    """The device, if this machine has it."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"--device {name}: this machine or this build of torch has no CUDA device; use --device cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices, counted from 0."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(
            f"--device {name}: this machine or this build of torch has no MPS device; use --device cpu."
        )
    return device
