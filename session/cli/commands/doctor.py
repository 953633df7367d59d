import json

import typer

from session.cli.output import AsJson, note, say, show_fields, show_rows, waiting


def doctor(as_json: AsJson = False) -> None:
    """Try the database and the object store, and say which settings to use. 1 if one fails."""
    from session.cli import examination

    with waiting(
        "trying the database and the object store",
        interrupted="a folder doctor-* may be left in the store",
    ):
        report = examination.examine()
    if as_json:
        show_fields(report, as_json=True)
    else:
        show_rows(report["checks"], ("check", "verdict", "detail"), as_json=False)
        if report["settings"]:
            note("the settings that work here:")
        for name, value in report["settings"].items():
            say(f"{name}={value}")
        if report["lifecycle_rule"]:
            note("the lifecycle rule that lets the bucket end unfinished uploads by itself:")
            say(json.dumps(report["lifecycle_rule"]))
    if not report["ok"]:
        note("modelyard: what fails above keeps the service from working")
        raise typer.Exit(1)
