"""The files that make weights usable: tokenizer, chat template, generation config."""

import shutil
from pathlib import Path

TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
GENERATION_CONFIG = "generation_config.json"
EXTRA_TEMPLATES = "additional_chat_templates"


def companions(directory: Path) -> list[Path]:
    """The companion files that this directory has, relative to it, sorted."""
    names = [Path(name) for name in (*TOKENIZER_FILES, GENERATION_CONFIG)]
    extra = sorted((directory / EXTRA_TEMPLATES).glob("*.jinja"))
    found = [name for name in names if (directory / name).is_file()]
    return sorted([*found, *(path.relative_to(directory) for path in extra)])


def copy_companions(base: Path, target: Path) -> None:
    """Copied byte for byte: a file written again from a config loses what the config cannot say."""
    for name in companions(base):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(base / name, target / name)
