import pytest
import typer

from session.cli.references import Reference, parse_reference


@pytest.mark.parametrize("words", [("facts@2",), ("facts", "2")])
def test_both_ways_of_writing_give_one_version(words: tuple[str, ...]) -> None:
    assert parse_reference(*words) == Reference("facts", 2)


@pytest.mark.parametrize("words", [("facts",), ("facts@",), ("@2",), ("facts", "x"), ("a@1", "2")])
def test_what_names_no_version_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(typer.BadParameter, match="GROUP@VERSION"):
        parse_reference(*words)


def test_a_group_cannot_lead_to_another_path() -> None:
    assert Reference("../tokens", 1).path == "/v1/groups/..%2Ftokens/versions/1"
