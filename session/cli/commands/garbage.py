from typing import Annotated

import typer

from session.cli.errors import Ending
from session.cli.expiry import parse_age
from session.cli.output import AsJson, note, show_fields, show_rows, waiting


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="What is younger stays: 24h, 7d, 0h.")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Delete objects that belong to nothing, and name versions whose files are missing.

    Over all accounts. What is being written is safe. 1 if a version lacks files.
    """
    from session.cli import sweeping

    age = parse_age(older_than)
    again = "what was deleted is garbage all the same; run it again for the rest"
    with waiting("comparing the object store with the database", interrupted=again):
        found = sweeping.sweep(age, dry_run=dry_run)
    if as_json:
        show_fields(found, as_json=True)
    else:
        show_rows(found["garbage"], ("kind", "places", "objects", "bytes"), as_json=False)
        if found["damaged"]:
            show_rows(found["damaged"], ("account", "ref", "path", "problem"), as_json=False)
        if foreign := found["foreign"]["objects"]:
            note(f"{foreign} objects are not Modelyard's, or of another installation: left alone")
        done = "would be freed" if dry_run else "are freed"
        note(f"{found['bytes_freed']} bytes {done}")
    if found["damaged"]:
        note(f"modelyard: {len(found['damaged'])} files of listed versions are missing or cut")
        raise typer.Exit(Ending.failed)
