"""What may be stored: an allow-list by content."""

from pathlib import Path

from exporters.base import BadFile
from exporters.content import read_content
from registry.artifacts.errors import ArtifactRefused


def refuse_pickle(path: Path) -> None:
    """Admit safetensors, JSON, text and SentencePiece models; anything else might be unpickled."""
    try:
        read_content(path)
    except BadFile as error:
        raise ArtifactRefused(path.name, error.reason) from None
