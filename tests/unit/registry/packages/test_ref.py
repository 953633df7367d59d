import pytest

from registry.packages.errors import InvalidRef
from registry.packages.ref import PackageRef


def test_a_ref_is_read_and_written_alike() -> None:
    ref = PackageRef.parse("my-group@12")
    assert ref == PackageRef("my-group", 12)
    assert str(ref) == "my-group@12"


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
