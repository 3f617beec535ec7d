"""Reading in blocks: the cut between two blocks changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnewton.text.corpus import alphabet_text
from rnnewton.text.reading import Count, NotUtf8, Piece, codes


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))), st.integers(1, 5))
def test_blocks_of_any_size_give_the_text(text: str, size: int) -> None:
    raw = text.encode()
    blocks = [raw[i : i + size] for i in range(0, len(raw), size)]
    assert "".join(str(alphabet_text("utf8", found)) for found in codes(blocks, "utf8")) == text
    assert b"".join(bytes(alphabet_text("bytes", found)) for found in codes(blocks, "bytes")) == raw


@given(st.binary(), st.integers(1, 5))
def test_the_offset_is_pythons_own(raw: bytes, size: int) -> None:
    blocks = [raw[i : i + size] for i in range(0, len(raw), size)]
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(NotUtf8) as found:
            list(codes(blocks, "utf8"))
        assert found.value.offset == error.start
    else:
        list(codes(blocks, "utf8"))


@given(st.binary(), st.integers(1, 5))
def test_escaped_bytes_are_the_whole_decodings(raw: bytes, size: int) -> None:
    blocks = [raw[i : i + size] for i in range(0, len(raw), size)]
    joined = "".join(str(alphabet_text("utf8", found)) for found in codes(blocks, "utf8", "surrogateescape"))
    assert joined == raw.decode("utf-8", "surrogateescape")


def test_counts_grow_with_the_codes() -> None:
    total = Count()
    for found in codes([b"aab", "é".encode(), "\U0001f600a".encode()], "utf8"):
        total.add(found)
    assert total.pairs() == [(97, 3), (98, 1), (0xE9, 1), (0x1F600, 1)]
    assert total.characters == 6


def test_spaced_pieces_lose_their_separators_only() -> None:
    assert b"".join(Piece(b"a e r _ b\nn", spaced=True).blocks()) == b"aer b\nn"
