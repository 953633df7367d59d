"""The table of settings in docs/operations.md, made from the settings. `make docs` writes it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from registry.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
_BEGIN, _END = "<!-- the settings, by `make docs` -->\n", "<!-- end of the settings -->"
_STANDS_FOR = re.compile(r"\s*None: (.+?)\.(?=\s|$)")


def settings_table() -> str:
    rows = [f"| `{name}` | {_default(f)} | {_meaning(f)} |" for name, f in variables(Settings)]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def variables(
    settings: type[BaseModel], prefix: str = "MODELYARD_"
) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from variables(kind, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}", field


def documented(page: str) -> str:
    """The table as it stands on the page."""
    return page.partition(_BEGIN)[2].partition(_END)[0].strip()


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is None:
        stands_for = _STANDS_FOR.search(field.description or "")
        return stands_for[1] if stands_for else "none"
    if value in ("", ()):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _meaning(field: FieldInfo) -> str:
    """Without the final full stop and the capital of a sentence, then what may be set."""
    text = " ".join(_STANDS_FOR.sub("", field.description or "").split()).removesuffix(".")
    first = text.partition(" ")[0]
    if first == "A" or first[1:].islower():
        text = text[:1].lower() + text[1:]
    allowed = _allowed(field)
    return f"{text} ({allowed})" if allowed else text


def _allowed(field: FieldInfo) -> str:
    for kind in (field.annotation, *get_args(field.annotation)):
        if get_origin(kind) is Literal:
            return " or ".join(f"`{choice}`" for choice in get_args(kind))
    least, most = _bound(field, "ge"), _bound(field, "le")
    if most is not None:
        return f"{least} to {most}"
    return f"at least {least}" if least is not None and least > 1 else ""


def _bound(field: FieldInfo, name: str) -> Any:
    return next((getattr(each, name) for each in field.metadata if hasattr(each, name)), None)


def main() -> None:
    before, begin, rest = PAGE.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise SystemExit(f"{PAGE} lacks the two comments between which the settings stand")
    PAGE.write_text(f"{before}{begin}\n{settings_table()}\n\n{end}{after}")


if __name__ == "__main__":
    main()
