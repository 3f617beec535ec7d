"""Corpora by name."""

from pathlib import Path

import numpy as np
import pytest

from rnnewton.text.corpus import CorpusSettings, read_corpus
from rnnewton.text.errors import UserError
from rnnewton.text.sources import builtin, find, wikipedia


def test_the_builtin_text_is_split_by_topics_and_has_no_paragraph_twice() -> None:
    texts = builtin.topics()
    paragraphs = [" ".join(p.split()) for text in texts.values() for p in text.split("\n\n") if p.strip()]
    assert len(paragraphs) == len(set(paragraphs))
    parts = builtin.split(texts)
    assert sorted(name for part in parts for name in part) == sorted(texts)
    total = sum(map(len, texts.values()))
    for part in parts[1:]:
        assert 0.04 * total < sum(len(texts[name]) for name in part) < 0.11 * total


def test_the_builtin_text_is_the_same_twice_and_says_its_version() -> None:
    first, second = (read_corpus(CorpusSettings()) for _ in range(2))
    assert first.digest == second.digest
    assert np.array_equal(first.training, second.training)
    assert "Python 3." in first.line()
    assert first.account.characters > 100_000
    assert min(first.account.lengths) > 5_000


@pytest.mark.parametrize("inside", ["", "wsj", "raw/wsj"])
def test_raw_penn_treebank(tmp_path: Path, inside: str) -> None:
    folder, tmp_path = tmp_path, tmp_path / inside
    tmp_path.mkdir(parents=True, exist_ok=True)
    for n in range(25):
        (tmp_path / f"{n:02d}").mkdir()
        for k in (2, 1):
            (tmp_path / f"{n:02d}" / f"wsj_{n:02d}{k:02d}").write_text(f".START \n\nsection {n} file {k}\n")
    corpus = read_corpus(CorpusSettings(f"penn:{folder}"))
    training = str(corpus.alphabet.decode(corpus.training))
    assert training.startswith(".START \n\nsection 0 file 1\n.START \n\nsection 0 file 2\n")
    assert training.count(".START") == 42
    assert str(corpus.alphabet.decode(corpus.validation)).count(".START") == 4
    assert "section 24 file 2" in str(corpus.alphabet.decode(corpus.test))
    (tmp_path / "07" / "wsj_0701").unlink()
    (tmp_path / "07" / "wsj_0702").unlink()
    (tmp_path / "07").rmdir()
    with pytest.raises(UserError, match="no section 07"):
        read_corpus(CorpusSettings(str(tmp_path)))


@pytest.mark.parametrize("prefix", ["", "ptb.", "ptb.char."])
@pytest.mark.parametrize("spaced", [False, True])
def test_preprocessed_penn_treebank(tmp_path: Path, prefix: str, spaced: bool) -> None:
    text = "no it was n't black monday\nbut while the <unk> stock\n"
    written = "\n".join(" ".join(line.replace(" ", "_")) for line in text.split("\n")) if spaced else text
    for part in ("train", "valid", "test"):
        (tmp_path / f"{prefix}{part}.txt").write_text(written)
    corpus = read_corpus(CorpusSettings(f"penn-char:{tmp_path}"))
    for ids in (corpus.training, corpus.validation, corpus.test):
        assert corpus.alphabet.decode(ids) == text
    assert corpus.account.dropped == (3 * (len(written) - len(text)) if spaced else 0)
    assert ("dropped" in corpus.line()) and ("nothing dropped" in corpus.line()) == (not spaced)


def test_wikipedia_from_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "enwik8"
    path.write_text("<mediawiki>" * 100)
    assert "has 1,100 bytes" in find(f"enwik8:{path}").note
    monkeypatch.setattr(wikipedia, "_BYTES", 1100)
    source = find(f"enwik8:{path}")
    assert source.split == "90000000/5000000/5000000"
    with pytest.raises(UserError, match="no file"):
        find(f"text8:{tmp_path / 'no'}")


def test_a_failed_download_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    def offline(*_: object, **__: object) -> None:
        raise OSError("offline")

    monkeypatch.setattr(pooch, "retrieve", offline)
    with pytest.raises(UserError, match=r"text8 could not be downloaded .* give text8:FILE"):
        find("text8")


def test_a_plain_folder_and_missing_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match="is a directory"):
        find(str(tmp_path))
    with pytest.raises(UserError, match="no such folder"):
        find(f"penn:{tmp_path / 'no'}")
    with pytest.raises(UserError, match="licensed"):
        find("penn")
