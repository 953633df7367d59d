import pytest

from registry.packages.errors import InvalidRef
from registry.packages.ref import AliasRef, PackageRef, parse_ref, ref_in


def test_a_ref_is_read_and_written_alike() -> None:
    ref = PackageRef.parse("my-group@12")
    assert ref == PackageRef("my-group", 12)
    assert str(ref) == "my-group@12"


def test_an_alias_is_read_and_written_alike() -> None:
    assert parse_ref("my-group:prod") == AliasRef("my-group", "prod")
    assert str(AliasRef("my-group", "prod")) == "my-group:prod"
    assert parse_ref("my-group@3") == PackageRef("my-group", 3)
    assert (ref_in("g", "3"), ref_in("g", "prod")) == (PackageRef("g", 3), AliasRef("g", "prod"))


@pytest.mark.parametrize("text", ["g:", ":a", "g:1", "g:a b", "g:a:b", "g@1:a", "g:-a", "g:a\n"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(InvalidRef, match="GROUP:ALIAS"):
        parse_ref(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "demo", "demo@", "@1", "demo@0", "demo@01", "demo@-1", "demo@1.0", "demo@x"),
        *("a@b@1", "demo@2147483648", "demo@99999999999", "-demo@1", "de mo@1", "demo@1\n"),
        *("a" * 64 + "@1", "a" + "-" * 62 + "a@1"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRef, match="GROUP@VERSION"):
        PackageRef.parse(text)
