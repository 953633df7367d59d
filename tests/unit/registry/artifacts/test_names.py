import pytest

from registry.artifacts.errors import InvalidArtifactName
from registry.artifacts.names import validate_artifact_name


@pytest.mark.parametrize(
    "name",
    ["a", "state/adam.safetensors", "checkpoints/hf/ü.json", "a b", "..a", "a%zz", "x" * 255],
)
def test_a_plain_name_passes_unchanged(name: str) -> None:
    assert validate_artifact_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "../x", "a/../../x", "..", "a/..", "ok/./x", "a//b", "a/", "/etc/passwd"),
        *("%2e%2e/x", "%252e%252e/x", "a\\..\\x", "http:///#/../../etc", "C:/x", "c:x"),
        *("a\0b", "a\nb", "u\u0308", "\ud800", "x" * 256, "/".join(["x" * 200] * 6)),
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidArtifactName):
        validate_artifact_name(name)
