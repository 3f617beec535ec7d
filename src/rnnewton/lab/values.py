"""What a setting may be: a kind reads a word of the command line or a TOML value, or says what it expects."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_T = TypeVar("_T")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True)
class Kind:
    """`shown` stands for the value in a usage line; `expected` says what a refused value should have been."""

    shown: str
    expected: str
    convert: Callable[[Any], Any]
    choices: tuple[str, ...] = ()

    def read(self, given: Any) -> Any:
        """The typed value of a word or of a TOML value; ValueError says what was expected."""
        try:
            return self.convert(given)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"{self.expected} is expected") from None


def whole(minimum: int = 0, shown: str = "N") -> Kind:
    """A whole number; on the command line also 100k or 2.16M."""

    def convert(given: Any) -> int:
        value = _scaled(given, _COUNTS) if isinstance(given, str) else _number(given)
        return int(_require(value, value == int(value) and value >= minimum))

    return Kind(shown, f"a whole number of at least {minimum}", convert)


def number(minimum: float = 0.0, above: bool = False, maximum: float = math.inf, shown: str = "X") -> Kind:
    """A real number from `minimum` on (or above it) up to `maximum`."""

    def convert(given: Any) -> float:
        value = float(given) if isinstance(given, str) else float(_number(given))
        low = value > minimum if above else value >= minimum
        return _require(value, low and value <= maximum and math.isfinite(value))

    upper = "" if math.isinf(maximum) else f" and at most {maximum:g}"
    return Kind(shown, f"a number {'above' if above else 'of at least'} {minimum:g}{upper}", convert)


def choice(*names: str) -> Kind:
    def convert(given: Any) -> str:
        return _require(given, given in names)

    return Kind("{" + ",".join(names) + "}", f"one of {', '.join(names)}", convert, names)


def switch() -> Kind:
    """Yes or no: --name and --no-name."""

    def convert(given: Any) -> bool:
        return _require(given, isinstance(given, bool))

    return Kind("", "true or false", convert)


def words(shown: str = "TEXT") -> Kind:
    def convert(given: Any) -> str:
        return _require(given, isinstance(given, str) and bool(given))

    return Kind(shown, "some text", convert)


def checked(shown: str, expected: str, accepts: Callable[[str], Any]) -> Kind:
    """Text in a small language of its own; `accepts` raises ValueError on what it cannot read."""

    def convert(given: Any) -> str:
        accepts(_require(given, isinstance(given, str) and bool(given)))
        return given

    return Kind(shown, expected, convert)


def widths() -> Kind:
    """Hidden sizes, the first layer first: 170 or 150,130,110."""

    def convert(given: Any) -> tuple[int, ...]:
        parts: list[Any]
        if isinstance(given, str):
            parts = [int(part) for part in given.split(",")]
        else:
            parts = list(cast("list[Any]", given)) if isinstance(given, list | tuple) else [given]
        numbers = [_require(part, isinstance(part, int) and _number(part) > 0) for part in parts]
        return tuple(_require(numbers, bool(numbers)))

    return Kind("N[,N…]", "a hidden size of at least 1 for each layer, such as 170 or 150,130,110,", convert)


def size() -> Kind:
    """Bytes: 2GiB, 500MB, 1000000."""

    def convert(given: Any) -> int:
        value = _scaled(given, _BYTES) if isinstance(given, str) else _number(given)
        return int(_require(value, value >= 1))

    return Kind("SIZE", "a size such as 2GiB or 500MB", convert)


def amount() -> Kind:
    """How much of a text or a batch: `all`, a part (0.25, 1/4), or characters (100k). Kept as given."""

    def convert(given: Any) -> str:
        text = given if isinstance(given, str) else f"{_number(given)}"
        characters_of(text, 1)
        return text

    return Kind("AMOUNT", "`all`, a part such as 1/4, or a number of characters such as 100k", convert)


def characters_of(amount: str, total: int) -> int:
    """The characters that an amount stands for, of `total`: never more than there are, never none."""
    if amount == "all":
        return total
    if match := re.fullmatch(r"(\d+)/(\d*[1-9]\d*)", amount):
        part = int(match[1]) / int(match[2])
    else:
        value = _scaled(amount, _COUNTS)
        if value >= 1 and value == int(value) and not re.fullmatch(r"1\.0*", amount):
            return min(int(value), total)
        part = value
    return max(1, round(_require(part, 0 < part <= 1) * total))


def _require(value: _T, condition: bool) -> _T:
    if not condition:
        raise ValueError
    return value


def _number(given: Any) -> int | float:
    return _require(given, isinstance(given, int | float) and not isinstance(given, bool))


def _scaled(text: str, units: dict[str, int]) -> float:
    """A number with a unit behind it, exactly where it is whole."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)(e\d{1,2})?\s*([a-zA-Z]*)\s*", text)
    if not match or match[3].lower() not in units:
        raise ValueError
    digits, unit = match[1] + (match[2] or ""), units[match[3].lower()]
    value = int(digits) * unit if digits.isdecimal() else round(float(digits) * unit, 6)
    return int(value) if value == int(value) else value
