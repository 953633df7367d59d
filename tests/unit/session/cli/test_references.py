import pytest
import typer

from session.cli.references import Reference, parse_reference


@pytest.mark.parametrize("words", [("facts@2",), ("facts", "2")])
def test_both_ways_of_writing_give_one_version(words: tuple[str, ...]) -> None:
    assert parse_reference(*words) == Reference("facts", 2)


def test_an_alias_is_written_after_a_colon() -> None:
    found = parse_reference("facts:prod")
    assert (found, str(found)) == (Reference("facts", "prod"), "facts:prod")
    assert found.path == "/v1/groups/facts/versions/prod"


@pytest.mark.parametrize(
    "words",
    [
        *(("facts",), ("facts@",), ("@2",), ("facts", "x"), ("a@1", "2")),
        *(("facts:",), (":prod",), ("facts:1",), ("facts:a/b",), ("facts@1:a",)),
    ],
)
def test_what_names_no_version_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(typer.BadParameter, match="GROUP@VERSION"):
        parse_reference(*words)


def test_a_group_cannot_lead_to_another_path() -> None:
    with pytest.raises(typer.BadParameter, match=r"'\.\./tokens' is not the name of a group"):
        _ = Reference("../tokens", 1).path
