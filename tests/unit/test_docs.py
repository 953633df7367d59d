"""What the documentation promises to be complete about is compared with the code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from fastapi import FastAPI

import modelyard
from registry.api.auth import permissions
from registry.kit.errors import Kind
from registry.settings import Settings
from session.app import create_app
from session.cli.root import app
from session.engine.port import Loss
from session.lifecycle.model import TRANSITIONS, Status
from support.settings_table import documented, settings_table, variables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
_TARGET = re.compile(r"^([a-z-]+):.*## ", re.MULTILINE)


def test_operations_md_has_the_settings_as_the_code_has_them() -> None:
    assert documented(_page("operations.md")) == settings_table(), "run: make docs"


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, field in variables(Settings) if not field.description] == []


def test_cli_md_has_every_command_and_no_other() -> None:
    documented = re.findall(r"^\| `modelyard ((?:[a-z]+ ?)+)", _page("cli.md"), re.MULTILINE)
    assert sorted(map(str.strip, documented)) == sorted(_commands(typer.main.get_command(app)))


def test_rest_md_has_every_route_and_no_other(tmp_path: Path) -> None:
    paths = _app(tmp_path).openapi()["paths"]
    routes = {
        f"{method.upper()} {path.replace(':path}', '}')}"
        for path, methods in paths.items()
        for method in methods
    }
    documented = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /\S+)`", _page("rest.md")))
    assert documented == routes


def test_permissions_md_has_the_role_of_every_route(tmp_path: Path) -> None:
    documented = re.findall(
        r"^\| `(\w+) (/\S+)` \| (\w+) \|", _page("permissions.md"), re.MULTILINE
    )
    roles = {
        (method, path): str(role) for (method, path), role in permissions(_app(tmp_path)).items()
    }
    assert {(method, path): role for method, path, role in documented} == roles


def test_rest_md_has_every_kind_of_error() -> None:
    documented = re.findall(r"\| `(\w+)` \| [45]\d\d", _page("rest.md"))
    assert sorted(documented) == sorted(Kind)


def test_client_md_has_every_error_and_no_other() -> None:
    documented = re.findall(
        r"^\| `(\w+)` \|", _section("client.md", "When something fails"), re.MULTILINE
    )
    exported = [item for item in vars(modelyard).values() if isinstance(item, type)]
    errors = {item.__name__ for item in exported if issubclass(item, modelyard.ModelyardError)}
    assert set(documented) == errors - {"ModelyardError"}


def test_losses_md_has_every_loss_and_no_other() -> None:
    documented = re.findall(r"^\| `(\w+)`", _page("losses.md"), re.MULTILINE)
    assert documented == list(Loss)


def test_sessions_md_has_every_state_and_what_may_follow_it() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| ([a-z, ]*)\|$", _section("sessions.md", "States"), re.MULTILINE
    )
    documented = {state: set(re.findall(r"\w+", following)) for state, following in rows}
    assert documented == {str(state): set(map(str, TRANSITIONS[state])) for state in Status}


def test_every_make_command_that_a_page_names_exists() -> None:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    named = {word for page in PAGES for word in re.findall(r"\bmake ([a-z-]+)[`\s]", _code(page))}
    assert named >= {"demo", "test", "serve"}
    assert named <= targets


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = [int(path.name[:4]) for path in sorted((DOCS / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_documentation_leads_somewhere(page: Path) -> None:
    broken = [
        (target, heading)
        for target, heading in _LINK.findall(page.read_text())
        if not _leads_somewhere(page, target, heading)
    ]
    assert broken == []


def _app(home: Path) -> FastAPI:
    return create_app(Settings(home=home))


def _page(name: str) -> str:
    return (DOCS / name).read_text()


def _section(page: str, heading: str) -> str:
    return _page(page).split(f"## {heading}\n")[1].split("\n## ")[0]


def _code(page: Path) -> str:
    """What stands in backticks or in an indented block."""
    text = page.read_text()
    return "\n".join(
        [*re.findall(r"`[^`\n]+`", text), *re.findall(r"^    .*$", text, re.MULTILINE)]
    )


def _commands(command: object, path: str = "") -> Iterator[str]:
    """Visible commands, as they are typed."""
    nested = getattr(command, "commands", None)
    if nested is None:
        yield path
        return
    for name, child in nested.items():
        if not child.hidden:
            yield from _commands(child, f"{path} {name}".strip())


def _leads_somewhere(page: Path, target: str, heading: str) -> bool:
    found = page.parent / target if target else page
    if not heading:
        return found.exists()
    headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
    return heading in {text.lower().replace(" ", "-") for text in headings}
