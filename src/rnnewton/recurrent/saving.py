"""A model on disk: `model.json` says what it is, `weights.safetensors` holds the weights. Never pickle.

A run folder is read too: its `checkpoints/` hold model folders, and `checkpoints/index.json` says which is
which: {"newest": "step-000012", "best": "step-000010"}.
"""

import json
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.initialization import Normal, SparseNormal
from rnnewton.recurrent.model import RecurrentModel

FORMAT = "rnnewton-model"
VERSION = 1
DESCRIPTION, WEIGHTS = "model.json", "weights.safetensors"
INITIALIZATIONS = {"normal": Normal, "sparse-normal": SparseNormal}

# How an alphabet is read back, for whoever has an alphabet of another kind than the text layer's.
alphabet_reader: Callable[[dict[str, Any]], Any] | None = None


class SavedModelError(ValueError):
    """A folder that cannot be read as a model, and why."""


def save(model: RecurrentModel, folder: str | Path) -> None:
    """Writes the two files; the weights first, so that a description always finds its weights."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights, description = serialize(model)
    _replace(folder / WEIGHTS, weights)
    _replace(folder / DESCRIPTION, description)


def serialize(model: RecurrentModel) -> tuple[bytes, bytes]:
    """The contents of `weights.safetensors` and `model.json`."""
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    weights = format_tensors(tensors, metadata={"format": FORMAT})
    names: dict[type, str] = {kind: name for name, kind in INITIALIZATIONS.items()}
    described = names.get(type(model.init))
    description = {
        "format": FORMAT,
        "version": VERSION,
        "architecture": model.architecture.to_dict(),
        "init": described and {"kind": described, **vars(model.init)},
        "seed": model.seed,
        "alphabet": None if model.alphabet is None else model.alphabet.to_dict(),
        "weights_sha256": sha256(weights).hexdigest(),
    }
    return weights, json.dumps(description, indent=1, ensure_ascii=True).encode()


def load(folder: str | Path, which: str = "best") -> RecurrentModel:
    """The model of a folder that `model.save` wrote, or of a run folder ("best" or "newest" checkpoint)."""
    folder = _model_folder(Path(folder), which)
    description = _description(folder)
    try:
        weights = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise SavedModelError(
            f"{folder}: {WEIGHTS} is missing or cannot be read ({error.strerror})"
        ) from None
    if sha256(weights).hexdigest() != description.get("weights_sha256"):
        raise SavedModelError(
            f"{folder / WEIGHTS} is truncated or altered: its checksum is not the recorded one"
        )
    try:
        tensors = parse_tensors(weights)
        model = _empty_model(description)
        dtype = next(iter(tensors.values())).dtype
        model.to(dtype=dtype)
        model.load_state_dict(tensors)
        if description["alphabet"] is not None:
            model.alphabet = _alphabet(description["alphabet"])
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        StopIteration,
        AttributeError,
    ) as error:
        raise SavedModelError(
            f"{folder}: the weights do not fit the description in {DESCRIPTION}: {error}"
        ) from None
    return model


def _empty_model(description: dict[str, Any]) -> RecurrentModel:
    a = Architecture.from_dict(description["architecture"])
    init: Any = description["init"]
    return RecurrentModel(
        a.cell,
        a.hidden,
        a.inputs,
        a.outputs,
        a.loss,
        direct_input=a.direct_input,
        direct_output=a.direct_output,
        bias=a.bias,
        output_bias=a.output_bias,
        squash_input=a.squash_input,
        init=Normal(0.0) if not init else INITIALIZATIONS[init.pop("kind")](**init),
        seed=description["seed"],
    )


def _alphabet(saved: dict[str, Any]) -> Any:
    """By the reader that was set, else by the text layer's, which is imported only now and only by name."""
    return (alphabet_reader or import_module("rnnewton.text.alphabet").Alphabet.from_dict)(saved)


def _model_folder(folder: Path, which: str) -> Path:
    if which not in ("best", "newest"):
        raise ValueError(f"which={which!r} is not known; take 'best' or 'newest'")
    if not folder.is_dir():
        raise SavedModelError(f"{folder} is not a folder; a saved model is a folder with {DESCRIPTION} in it")
    index = folder / "checkpoints" / "index.json"
    if (folder / DESCRIPTION).exists() or not index.exists():
        return folder
    named = _json(index).get(which)
    if not isinstance(named, str) or not (folder / "checkpoints" / named).is_dir():
        raise SavedModelError(f"{index} names no {which} checkpoint that exists; the run may not have begun")
    return folder / "checkpoints" / named


def _description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    if not path.exists():
        raise SavedModelError(f"{folder} holds no {DESCRIPTION}, so it is not a saved model")
    description = _json(path)
    if description.get("format") != FORMAT:
        raise SavedModelError(f"{path} is not a description of an rnnewton model")
    if description.get("version") != VERSION:
        raise SavedModelError(
            f"{path} is of format version {description.get('version')!r}; this rnnewton reads version"
            f" {VERSION}"
        )
    missing = {"architecture", "init", "seed", "alphabet", "weights_sha256"} - description.keys()
    if missing:
        raise SavedModelError(f"{path} lacks {', '.join(sorted(missing))}; it was cut off or altered")
    return description


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SavedModelError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise SavedModelError(f"{path} holds no JSON object")
    return values


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    temporary.replace(path)
