"""Settings: TOML and flags name the same things, and a wrong name is answered with the nearest right one."""

import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from rnnewton.lab.configuration import changed, flat, from_document, is_fixed, to_document
from rnnewton.lab.settings import Settings, all_settings
from rnnewton.text.errors import UserError


def test_names_are_used_once() -> None:
    names = [each.name for _, each in all_settings()]
    assert len(set(names)) == len(names)


def test_settings_survive_toml() -> None:
    changes = {
        "hidden": (150, 130),
        "cell": "mrnn",
        "steps": 7,
        "damping": "line-search:0.8",
        "merge": 'T"U',
        "text": "a.txt",
    }
    settings = changed(Settings(), {**changes, "preset": "thesis/mlstm"})
    document = tomllib.loads(tomli_w.dumps(to_document(settings)))
    again = changed(Settings(), from_document(document, "config.toml"))
    assert again == settings


def test_settings_may_stand_at_the_top_of_a_file() -> None:
    top = from_document({"hidden": [8], "cg-iterations": 3, "optimizer": "adam", "text": "a.txt"}, "file")
    assert top == {"hidden": (8,), "cg_iterations": 3, "optimizer": "adam", "text": "a.txt"}
    tables = from_document({"model": {"hidden": 8}, "optimizer": {"optimizer": "adam"}}, "file")
    assert tables == {"hidden": (8,), "optimizer": "adam"}


@pytest.mark.parametrize(
    ("document", "nearest"),
    [
        ({"hiden": [8]}, "'hidden'"),
        ({"model": {"sed": 1}}, "'seed'"),
        ({"limits": {"second": 1}}, "'seconds'"),
        ({"learning_rat": 1}, "'learning_rate'"),
        ({"modle": {"seed": 1}}, "'model'"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(document: dict[str, object], nearest: str) -> None:
    with pytest.raises(UserError, match="there is no setting") as caught:
        from_document(document, "file.toml")
    assert nearest in str(caught.value) and "file.toml" in str(caught.value)


def test_a_setting_in_the_wrong_table_is_refused() -> None:
    with pytest.raises(UserError, match=r"table \[model\]"):
        from_document({"model": {"steps": 3}}, "file.toml")


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.none() | st.integers() | st.text(max_size=5) | st.dictionaries(st.text(max_size=6), st.integers()),
    )
)
def test_any_document_is_read_or_refused(document: dict[str, object]) -> None:
    try:
        from_document(document, "file.toml")
    except UserError as error:
        assert "file.toml" in str(error)


def test_limits_and_machine_may_change_and_nothing_else() -> None:
    free = {name for name in flat(Settings()) if not is_fixed(name)}
    assert free == {
        "steps", "seconds", "patience", "device", "memory", "threads",
        "report_every", "validate_every", "checkpoint_every", "tensorboard",
    }  # fmt: skip
