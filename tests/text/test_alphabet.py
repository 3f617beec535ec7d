"""Alphabets: ids, decoding, unknown and merged symbols, and what is stored."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rnnewton.text.alphabet import UNKNOWN_CHARACTER, Alphabet
from rnnewton.text.errors import UserError


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1))
def test_a_text_comes_back(text: str) -> None:
    alphabet = Alphabet.of(text)
    ids = alphabet.encode(text)
    assert ids.dtype == torch.int64
    assert ids.dim() == 1
    assert alphabet.decode(ids) == text
    assert torch.equal(alphabet.encode(text.encode()), ids)
    assert list(alphabet.symbols) == sorted(set(text))


@given(st.binary(min_size=1))
def test_bytes_come_back(data: bytes) -> None:
    alphabet = Alphabet.of(data)
    assert alphabet.decode(alphabet.encode(data)) == data
    assert alphabet.symbols == tuple(bytes((b,)) for b in sorted(set(data)))


@given(st.text(min_size=1, alphabet="abcdé€😀"), st.none() | st.integers(2, 9))
def test_json_keeps_everything(text: str, limit: int | None) -> None:
    alphabet = Alphabet.of(text, limit, merge="ab")
    assert Alphabet.from_dict(json.loads(json.dumps(alphabet.to_dict()))) == alphabet


def test_a_limit_keeps_the_most_frequent_and_one_unknown() -> None:
    alphabet = Alphabet.of("aaabbbccd", limit=3)
    assert alphabet.symbols == ("a", "b", UNKNOWN_CHARACTER)
    assert len(alphabet) == 3
    assert alphabet.unknown == 2
    assert alphabet.encode("abcdx").tolist() == [0, 1, 2, 2, 2]
    assert alphabet.decode([0, 2]) == "a" + UNKNOWN_CHARACTER


def test_ties_keep_the_smaller_code() -> None:
    assert Alphabet.of("dcba", limit=3).symbols[:2] == ("a", "b")


def test_merged_symbols_share_an_id_and_are_counted() -> None:
    alphabet = Alphabet.of("TUVV$ab", merge="TUV$")
    assert alphabet.symbols == ("T", "a", "b")
    assert alphabet.decode(alphabet.encode("aTUV$b")) == "aTTTTb"
    assert {chr(merge.code): merge.times for merge in alphabet.merges} == {"U": 1, "V": 2, "$": 1}


def test_merging_into_a_symbol_that_the_text_lacks() -> None:
    alphabet = Alphabet.of("abb", merge="xb")
    assert alphabet.symbols == ("a", "x")
    assert alphabet.decode(alphabet.encode("ab")) == "ax"


def test_an_unknown_symbol_is_named_with_its_place() -> None:
    with pytest.raises(UserError, match=r"'é' \(U\+00E9\) at position 2"):
        Alphabet.of("abc").encode("abé")
    with pytest.raises(UserError, match="byte 0xff"):
        Alphabet.of("abc").encode(b"a\xff")


def test_a_merge_of_one_symbol_and_a_tiny_limit_are_refused() -> None:
    with pytest.raises(UserError, match="at least two"):
        Alphabet.of("abc", merge="aa")
    with pytest.raises(UserError, match="at least 2"):
        Alphabet.of("abc", limit=1)


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_bytes_per_symbol_are_utf8s(text: str) -> None:
    alphabet = Alphabet.of("ab")
    lengths = alphabet.bytes_of(alphabet.codes_of(text))
    assert lengths.tolist() == [len(c.encode()) for c in text]


def test_bytes_that_are_not_utf8_count_one_each() -> None:
    alphabet = Alphabet.of("ab")
    codes = alphabet.codes_of(b"a\xff\xfeb\xc3\xa9")
    assert alphabet.bytes_of(codes).tolist() == [1, 1, 1, 1, 2]
    assert alphabet.unknown_among(codes).tolist() == [False, True, True, False, True]


def test_codes_beyond_the_table_are_unknown() -> None:
    alphabet = Alphabet.of("ab")
    assert alphabet.ids_of(np.array([97, 99, 0x10FFFF], dtype=np.uint32)).tolist() == [0, -1, -1]
