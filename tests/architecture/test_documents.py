"""Documents name files, links, targets and tests that exist."""

import re
from pathlib import Path

import pytest

from hotseat.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
HOMES = (ROOT, ROOT / "src" / "hotseat", ROOT / "csrc", ROOT / "benchmarks")
# Of mypy, pip, pytest and the scripts of benchmarks/; and the beginning of a pattern.
FLAGS_OF_OTHERS = {
    "--help",
    "--help-all",
    "--strict",
    "--deps",
    "--only",
    "--concurrency",
    "--save",
    "--profile",
    "--max",
}
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|cpp|h))(?:::\w+)?`")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_ours(name: str) -> bool:
    """Tell a path of this project from hub ids, URLs and other slashes."""
    first = name.split("/")[0]
    return name.endswith((".py", ".cpp", ".h")) or any((home / first).is_dir() for home in HOMES if first)


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_path_exists(document: Path) -> None:
    names = {
        name for name in PATH.findall(document.read_text(encoding="utf-8")) if is_ours(name) and "NAME" not in name
    }
    homes = (*HOMES, document.parent)
    missing = {
        name
        for name in names
        if not any((home / name).exists() for home in homes)
        and not ("/" not in name and any(any((ROOT / top).rglob(name)) for top in ("src", "csrc")))
    }
    assert missing == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, target


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_command_flag_and_variable_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    options = [(command.prefix, option) for command in COMMANDS.values() for option in command.known().values()]
    flags = {option.flag for _, option in options} | {"--config", *FLAGS_OF_OTHERS}
    named = {flag.replace("--no-", "--") for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert named - flags == set()
    variables = {prefix + option.name.upper() for prefix, option in options} | {"HOTSEAT_CACHE_DIR", "HOTSEAT_CONFIG"}
    assert set(re.findall(r"\bHOTSEAT_[A-Z_]+[A-Z]", text)) <= variables
    commands = set(re.findall(r"(?:`|^    (?:\.venv/bin/)?)hotseat ([a-z]+(?: [a-z]+)?)", text, re.MULTILINE))
    assert {name for name in commands if name not in COMMANDS and name.split()[0] not in COMMANDS} == set()


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", document.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, relative(document)


def test_every_target_has_one_recipe() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w-]+):", makefile, re.MULTILINE)
    assert len(targets) == len(set(targets))
    phony = {name for line in re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE) for name in line.split()}
    assert phony - set(targets) == set()


def test_contributing_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = {name for line in re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE) for name in line.split()}
    listed = set(re.findall(r"make ([\w-]+)", (ROOT / "CONTRIBUTING.md").read_text() + makefile[:900]))
    parts = {name for name in phony if name.startswith("check-")} - {"check-native", "check-packages"}
    assert phony - parts - listed - {"help", "pull", "clean"} == set()


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\((\d{3}-[\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in folder.glob("[0-9]*.md")}
