"""The corpus reader: every byte accounted for, every fault one sentence."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rnnewton.text import corpus as corpus_module
from rnnewton.text.alphabet import Alphabet
from rnnewton.text.corpus import CorpusSettings, read_corpus
from rnnewton.text.errors import UserError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("abcdefghij" * 20 + "é€")
    return path


def test_every_byte_is_accounted_for(text: Path) -> None:
    corpus = read_corpus(CorpusSettings(str(text)))
    account = corpus.account
    assert (account.bytes, account.characters, account.symbols, account.kind) == (205, 202, 12, "utf8")
    assert account.lengths == (182, 10, 10)
    assert sum(account.lengths) == account.characters
    assert "nothing dropped" in corpus.line()
    whole = np.concatenate([corpus.training, corpus.validation, corpus.test])
    assert corpus.alphabet.decode(whole) == text.read_text()


def test_bytes_on_request(text: Path) -> None:
    corpus = read_corpus(CorpusSettings(str(text), read="bytes"))
    assert corpus.account.characters == 205
    assert (
        corpus.alphabet.decode(np.concatenate([corpus.training, corpus.validation, corpus.test]))
        == text.read_bytes()
    )


def test_auto_takes_bytes_where_utf8_fails_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"abc" * 20 + b"\xff" + b"abc" * 20)
    corpus = read_corpus(CorpusSettings(str(path)))
    assert corpus.account.kind == "bytes"
    assert "not UTF-8 at byte 60" in corpus.line()
    with pytest.raises(UserError, match="byte 60"):
        read_corpus(CorpusSettings(str(path), read="utf8"))


def test_counts_fractions_and_what_is_unused(text: Path) -> None:
    assert read_corpus(CorpusSettings(str(text), split="100/50/52")).account.lengths == (100, 50, 52)
    part = read_corpus(CorpusSettings(str(text), split="100/50")).account
    assert (part.lengths, part.unused) == ((100, 50, 0), 52)
    assert read_corpus(CorpusSettings(str(text), split="0.5/0.25")).account.lengths == (101, 50, 0)


def test_of_a_very_long_text_little_is_held_out(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module.split, "HELD_OUT", 7)
    assert read_corpus(CorpusSettings(str(text))).account.lengths == (188, 7, 7)
    assert read_corpus(CorpusSettings(str(text), split="0.9/0.05/0.05")).account.lengths == (182, 10, 10)


def test_splits_by_files_share_one_alphabet(tmp_path: Path) -> None:
    for name, content in [("a", "abab" * 9), ("b", "bcbc"), ("c", "dd")]:
        (tmp_path / name).write_text(content)
    cut = f"{tmp_path / 'b'},{tmp_path / 'c'}"
    corpus = read_corpus(CorpusSettings(str(tmp_path / "a"), split=cut))
    assert corpus.alphabet.symbols == ("a", "b", "c", "d")
    assert corpus.account.lengths == (36, 4, 2)
    assert corpus.alphabet.decode(corpus.test) == "dd"


def test_unknown_and_merged_characters_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("aaaaaabbbbbcTTTTUU")
    account = read_corpus(CorpusSettings(str(path), alphabet=4, merge="TU")).account
    assert (account.symbols, account.unknown, account.merged) == (4, 1, 2)
    assert "1 became the unknown symbol" in account.line()


def test_the_digest_is_of_the_text(text: Path) -> None:
    first = read_corpus(CorpusSettings(str(text))).digest
    assert read_corpus(CorpusSettings(str(text), read="bytes")).digest != first
    text.write_text("x" + text.read_text()[1:])
    assert read_corpus(CorpusSettings(str(text))).digest != first


@pytest.mark.parametrize("mapped", [False, True])
def test_large_texts_are_mapped_and_found_again(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    small = read_corpus(CorpusSettings(str(text)))
    monkeypatch.setattr(corpus_module, "IN_MEMORY", 10)
    folder = tmp_path / "ids" if mapped else None
    large = read_corpus(CorpusSettings(str(text)), folder)
    assert isinstance(large.training, np.memmap)
    assert np.array_equal(large.training, small.training)
    assert np.array_equal(large.test, small.test)
    if folder is not None:
        written = (folder / "ids.npy").stat().st_mtime_ns
        again = read_corpus(CorpusSettings(str(text)), folder)
        assert (folder / "ids.npy").stat().st_mtime_ns == written
        assert np.array_equal(again.training, small.training)
        (folder / "ids.npy").write_bytes(b"broken")
        assert np.array_equal(read_corpus(CorpusSettings(str(text)), folder).training, small.training)


def test_a_given_alphabet_is_used_and_must_suffice(text: Path) -> None:
    alphabet = Alphabet.of("abcdefghijé€z")
    corpus = read_corpus(CorpusSettings(str(text)), alphabet=alphabet)
    assert corpus.alphabet is alphabet
    with pytest.raises(UserError, match="does not know"):
        read_corpus(CorpusSettings(str(text)), alphabet=Alphabet.of("abc"))


@pytest.mark.parametrize(
    ("content", "changes", "says"),
    [
        (b"", {}, "is empty"),
        (b"aaaaaaaaaa", {}, "only one symbol"),
        (b"abababab\xff", {"read": "utf8"}, "byte 8"),
        (b"ab" * 50, {"split": "1000/10/10"}, "the text has 100"),
        (b"ab" * 50, {"split": "0.9/0.9/0.1"}, "more than the whole"),
        (b"ab" * 50, {"split": "1/2/3/4"}, "two or three"),
        (b"ab" * 50, {"split": "0.5.5/0.1"}, "not made of numbers"),
        (b"ab" * 50, {"split": ""}, "is empty"),
        (b"ab" * 50, {"split": ","}, "names no file"),
        (b"ab" * 50, {"split": "9" * 400 + "/1"}, "not made of numbers"),
        (b"ab" * 50, {"split": "nowhere.txt"}, "no file 'nowhere.txt'"),
        (b"ab" * 50, {"split": "0/50/50"}, "too short"),
        (b"aba", {}, "too short"),
        (b"ab" * 50, {"alphabet": 1}, "at least 2"),
        (b"ab" * 50, {"merge": "a"}, "at least two"),
        (b"ab" * 50, {"read": "latin"}, "choose one of"),
    ],
)
def test_faults_are_one_sentence(
    tmp_path: Path, content: bytes, changes: dict[str, object], says: str
) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(UserError, match=says) as error:
        read_corpus(CorpusSettings(str(path), **changes))  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("name", "says"), [("missing", "no file"), ("", "is a directory"), ("\0", "no file")]
)
def test_paths_that_are_no_text(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_corpus(CorpusSettings(str(tmp_path / name)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200) | st.text(max_size=100).map(lambda t: t.encode("utf-8", "surrogatepass")),
    read=st.sampled_from(["auto", "utf8", "bytes"]),
    alphabet=st.none() | st.integers(-1, 20),
    merge=st.text(max_size=3),
    split=st.none()
    | st.sampled_from(
        ["0.8/0.1/0.1", "10/2/2", "1/1/1", "0/0/0", "9/9", "0.5/0.5", ".", "/", "a,b", "1e9", "0.1/0"]
    )
    | st.text(alphabet="0123456789./_,-", max_size=8),
)
def test_no_traceback_ever(
    tmp_path: Path, content: bytes, read: str, alphabet: int | None, merge: str, split: str | None
) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    try:
        corpus = read_corpus(CorpusSettings(str(path), read, alphabet, merge, split))
    except UserError as error:
        assert "\n" not in str(error)
        return
    account = corpus.account
    assert account.bytes == len(content) if split is None or "," not in split else True
    assert sum(account.lengths) + account.unused == account.characters
    assert len(corpus.training) >= 2
    assert int(max(corpus.training)) < len(corpus.alphabet)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_no_traceback_for_any_path(name: str) -> None:
    try:
        read_corpus(CorpusSettings("/nowhere/" + name))
    except UserError:
        return
    pytest.fail("a text was found at a path that does not exist")
