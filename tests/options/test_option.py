from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotseat import options
from hotseat.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Kitchen:
    max_num_pots: int = field(default=4, metadata={"help": "pots on the stove"})
    heat: float = 0.5
    length: int | str | None = None
    enable_lid: bool = True
    spices: tuple[str, ...] = ()
    extras: Mapping[str, object] | None = None
    style: str = field(default="plain", metadata={"choices": ["plain", "hot"]})
    port: int = 80
    pantry: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Hall:
    port: int = 90
    tables: int


OPTIONS = options.collect(("kitchen", Kitchen), ("hall", Hall))


def from_env(**variables: str) -> dict[str, object]:
    return options.from_environment(OPTIONS, {f"HOTSEAT_{name}": value for name, value in variables.items()})


def test_an_option_is_what_its_field_says() -> None:
    option = OPTIONS["max_num_pots"]
    assert (option.flag, option.default, option.help, option.group) == (
        "--max-num-pots",
        4,
        "pots on the stove",
        "kitchen",
    )


def test_the_first_group_owns_a_shared_name() -> None:
    assert (OPTIONS["port"].group, OPTIONS["port"].default) == ("kitchen", 80)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_pots", "7", 7),
        ("heat", "1", 1.0),
        ("heat", "1e-3", 0.001),
        ("length", "8k", "8k"),
        ("length", "8192", 8192),
        ("length", "none", None),
        ("enable_lid", "no", False),
        ("enable_lid", "TRUE", True),
        ("spices", "salt", "salt"),
        ("extras", '{"a": 1}', {"a": 1}),
        ("style", "none", "none"),
    ],
)
def test_text_is_read_by_the_fields_type(name: str, text: str, value: object) -> None:
    assert OPTIONS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("max_num_pots", "many", "an integer"),
        ("max_num_pots", "1.5", "an integer"),
        ("max_num_pots", "none", "an integer"),
        ("heat", "hot", "a number"),
        ("enable_lid", "maybe", "true or false"),
        ("extras", "[1]", "a JSON object"),
    ],
)
def test_text_of_a_wrong_type_is_named(name: str, text: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be {kind}, not '{text}'".replace("[", r"\[")):
        OPTIONS[name].parse(text)


def test_python_values_are_checked_and_made_alike() -> None:
    values = {"heat": 1, "spices": ["salt", "pepper"], "length": None, "extras": {"a": 1}}
    checked = options.from_keywords(OPTIONS, values, "")
    assert checked == {"heat": 1.0, "spices": ("salt", "pepper"), "length": None, "extras": {"a": 1}}
    assert isinstance(checked["heat"], float)


def test_paths_know_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert OPTIONS["pantry"].parse("~/jam") == Path("/home/someone/jam")
    assert options.from_keywords(OPTIONS, {"pantry": "~/jam"}, "") == {"pantry": Path("/home/someone/jam")}


def test_a_single_text_is_a_sequence_of_one() -> None:
    assert options.from_keywords(OPTIONS, {"spices": "salt"}, "") == {"spices": ("salt",)}


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_num_pots", True), ("max_num_pots", "4"), ("enable_lid", 1), ("spices", [1]), ("heat", None)],
)
def test_python_values_of_a_wrong_type_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be"):
        options.from_keywords(OPTIONS, {name: value}, "")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown option max_num_pot for LLM; did you mean max_num_pots\?"):
        options.from_keywords(OPTIONS, {"max_num_pot": 1}, "for LLM")


def test_an_unknown_flag_gets_the_nearest_flag() -> None:
    assert "did you mean --enable-lid?" in str(options.unknown_option("--enabel-lid", OPTIONS, ""))


def test_the_environment_is_read_by_prefix() -> None:
    assert from_env(MAX_NUM_POTS="2", ENABLE_LID="0", SPICES="salt,pepper", HEAT="") == {
        "max_num_pots": 2,
        "enable_lid": False,
        "spices": ("salt", "pepper"),
    }


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="HOTSEAT_MAX_NUM_POTS: max_num_pots must be an integer"):
        from_env(MAX_NUM_POTS="two")


def test_the_port_that_kubernetes_sets_is_ignored() -> None:
    assert from_env(PORT="tcp://10.0.0.1:8000") == {}
    assert from_env(PORT="8001") == {"port": 8001}


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_has_the_names_of_flags(tmp_path: Path) -> None:
    path = write(tmp_path, "max-num-pots: 3\nlength: 8k\nspices: [salt]\nenable_lid: false\n")
    assert options.from_file(OPTIONS, path) == {
        "max_num_pots": 3,
        "length": "8k",
        "spices": ("salt",),
        "enable_lid": False,
    }


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert options.from_file(OPTIONS, write(tmp_path, "# all defaults\n")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-pods: 3", "config.yaml, line 1: unknown option max-num-pods; did you mean max_num_pots"),
        ("max-num-pots: many", "max_num_pots must be an integer"),
        ("- a\n- b", "there must be `flag: value` lines"),
        ("a: [", "config.yaml, line 1: this is not YAML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.from_file(OPTIONS, write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        options.from_file(OPTIONS, str(tmp_path / "none.yaml"))


def test_a_configuration_takes_its_own_fields_only() -> None:
    values = {"max_num_pots": 2, "tables": 9, "port": 1}
    assert options.build(Kitchen, values) == Kitchen(max_num_pots=2, port=1)
    assert options.build(Hall, values, tables=3) == Hall(port=1, tables=3)
