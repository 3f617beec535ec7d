"""What a network is, without its weights: cell, widths, inputs, outputs, loss and connections."""

from dataclasses import asdict, dataclass
from typing import Any

LOSSES = ("softmax", "squared")


@dataclass(frozen=True)
class Real:
    """Inputs or outputs that are vectors of `size` real numbers; a plain int means so many symbols."""

    size: int


@dataclass(frozen=True)
class Architecture:
    cell: str
    hidden: tuple[int, ...]
    inputs: int | Real
    outputs: int | Real
    loss: str = "softmax"
    direct_input: bool = True
    direct_output: bool = True
    bias: bool | None = (
        None  # None: as the thesis counts, hidden biases for RNN and mRNN, none for gated cells
    )
    output_bias: bool = False
    squash_input: bool = False

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden=() has no layer; give at least one width, such as hidden=(170,)")
        for width in self.hidden:
            _positive("a hidden width", width)
        _positive("inputs", self.input_size)
        _positive("outputs", self.output_size)
        if self.loss not in LOSSES:
            raise ValueError(f"loss={self.loss!r} is not known; the losses are 'softmax' and 'squared'")
        if self.loss == "softmax" and isinstance(self.outputs, Real):
            raise ValueError(
                "loss='softmax' predicts symbols: give outputs as an int, or take loss='squared'"
            )
        if self.loss == "squared" and not isinstance(self.outputs, Real):
            raise ValueError(
                f"loss='squared' predicts real vectors: give outputs=rn.Real({self.outputs}), or take"
                " loss='softmax'"
            )

    @property
    def categorical(self) -> bool:
        return not isinstance(self.inputs, Real)

    @property
    def input_size(self) -> int:
        return self.inputs.size if isinstance(self.inputs, Real) else self.inputs

    @property
    def output_size(self) -> int:
        return self.outputs.size if isinstance(self.outputs, Real) else self.outputs

    @property
    def depth(self) -> int:
        return len(self.hidden)

    def reads_input(self, layer: int) -> bool:
        """Whether I(t) itself, not the layer below, is this layer's input."""
        return layer == 0 or self.direct_input

    def has_below(self, layer: int) -> bool:
        """Whether H_{l-1}(t) enters by a weight of its own beside I(t)."""
        return layer > 0 and self.direct_input

    def source_size(self, layer: int) -> int:
        return self.input_size if self.reads_input(layer) else self.hidden[layer - 1]

    def has_readout(self, layer: int) -> bool:
        return self.direct_output or layer == self.depth - 1

    def to_dict(self) -> dict[str, Any]:
        """JSON scalars only; `from_dict` is its inverse."""
        values = asdict(self)
        values["hidden"] = list(self.hidden)
        for side in ("inputs", "outputs"):
            size = getattr(self, side)
            values[side] = {"real": size.size} if isinstance(size, Real) else size
        return values

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Architecture":
        values = dict(values)
        for side in ("inputs", "outputs"):
            if isinstance(values[side], dict):
                values[side] = Real(values[side]["real"])
        values["hidden"] = tuple(values["hidden"])
        return Architecture(**values)


def _positive(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what} must be a whole number of at least 1; {value!r} was given")
