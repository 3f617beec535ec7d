"""Values of settings: what is read, and the sentence for what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnewton.lab import values
from rnnewton.lab.settings import DAMPING, INIT, SPLIT
from rnnewton.lab.values import Kind, characters_of

READ: list[tuple[Kind, object, object]] = [
    (values.widths(), "150,130,110", (150, 130, 110)),
    (values.widths(), [170], (170,)),
    (values.widths(), 8, (8,)),
    (values.size(), "2GiB", 2 << 30),
    (values.size(), "500MB", 500_000_000),
    (values.size(), 4096, 4096),
    (values.whole(), "2.16M", 2_160_000),
    (values.whole(), "100k", 100_000),
    (values.number(), "1e-3", 1e-3),
    (values.amount(), "1/4", "1/4"),
    (values.amount(), 5000, "5000"),
    (DAMPING, "structural:0.1+tikhonov:0.01", "structural:0.1+tikhonov:0.01"),
    (DAMPING, "line-search:0.8", "line-search:0.8"),
    (INIT, "sparse:0.1", "sparse:0.1"),
    (SPLIT, "2800000/200000/200000", "2800000/200000/200000"),
]
REFUSED: list[tuple[Kind, object]] = [
    (values.widths(), "0"),
    (values.widths(), "8,,8"),
    (values.widths(), []),
    (values.widths(), 8.0),
    (values.whole(1), 0),
    (values.whole(), "1.5"),
    (values.whole(), True),
    (values.number(above=True), 0),
    (values.number(), "nan"),
    (values.number(), "inf"),
    (values.size(), "2 parsecs"),
    (values.amount(), "0"),
    (values.amount(), "5/4"),
    (DAMPING, "structural:0.1+structural:0.2"),
    (DAMPING, "structural:-1"),
    (DAMPING, "tikonov:1"),
    (DAMPING, "line-search:1.5"),
    (INIT, "normal"),
]


@pytest.mark.parametrize(("kind", "given", "expected"), READ)
def test_is_read(kind: Kind, given: object, expected: object) -> None:
    assert kind.read(given) == expected


@pytest.mark.parametrize(("kind", "given"), REFUSED)
def test_is_refused(kind: Kind, given: object) -> None:
    with pytest.raises(ValueError, match="is expected"):
        kind.read(given)


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.lists(st.integers())
)


@given(given=ANYTHING)
def test_anything_is_read_or_refused_with_the_sentence(given: object) -> None:
    for kind in {id(kind): kind for kind, _, _ in READ}.values():
        try:
            kind.read(given)
        except Exception as error:
            if "--split" not in str(error):  # the split has its own sentences
                assert str(error) == f"{kind.expected} is expected"


def test_amounts_are_parts_or_characters() -> None:
    assert characters_of("all", 700) == 700
    assert characters_of("1/4", 700) == 175
    assert characters_of("0.1", 700) == 70
    assert characters_of("1.0", 700) == 700
    assert characters_of("216k", 700) == 700  # never more than there are
    assert characters_of("1", 700) == 1
    assert characters_of("1/1000", 10) == 1  # never none
