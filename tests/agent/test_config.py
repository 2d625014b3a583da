"""ranksight.toml: what is wrong is said with file, field and value."""

from pathlib import Path

import pytest

from ranksight.agent.config import Config, ConfigError, load


def test_no_file_is_all_defaults() -> None:
    assert load(None) == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense = 1", "nonsense: unknown key"),
        ("= 3", "is not TOML"),
        ("\ufeff\x00", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ranksight.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        load(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path / "none.toml")
