from typing import Any

from session.cli.commands.versions import Number, Written
from session.cli.errors import CommandFailed
from session.cli.output import AsJson, note, show_fields, show_rows, waiting
from session.cli.references import parse_source
from session.cli.service import Service

_COLUMNS = (
    "ref",
    "kind",
    "step",
    "parent",
    "state",
    "session",
    "base_model",
    "created_at",
    "digest",
)


def lineage(group: Written, version: Number = None, as_json: AsJson = False) -> None:
    """Show what a version was made from, and what was made from it: oldest first."""
    reference = parse_source(group, version)
    with Service.from_environment() as service:
        found = service.get(f"{reference.path}/lineage")
    if as_json:
        return show_fields(found, as_json=True)
    show_rows([{**node, "state": _state(node)} for node in found["nodes"]], _COLUMNS, as_json=False)
    if found["cut"]:
        note("there are more relatives than are shown")


def _state(node: dict[str, Any]) -> str:
    if node["purged_at"]:
        return "purged"
    return "deleted" if node["deleted_at"] else "live"


def verify(group: Written, version: Number = None, as_json: AsJson = False) -> None:
    """Read every byte of a version again and compare it with what was registered."""
    reference = parse_source(group, version)
    nothing = "nothing was changed; run it again to read the whole version"
    with (
        Service.from_environment() as service,
        waiting(f"reading {reference}", interrupted=nothing),
    ):
        found = service.post_long(f"{reference.path}/verify")
    wrong = [file for file in found["files"] if file["problem"]]
    if as_json:
        show_fields(found, as_json=True)
    elif wrong:
        show_rows(wrong, ("path", "problem"), as_json=False)
    if not found["intact"]:
        what = f"{len(wrong)} files are wrong" if wrong else "its list of files is another"
        raise CommandFailed(f"{found['ref']} is damaged: {what}")
    note(f"{found['ref']}: {len(found['files'])} files are what was registered")
