"""Pickle's oldest protocols are plain ASCII: whether a text, unpickled, would run code."""

import io
import pickle
import re
from typing import Any, NoReturn, Self

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class _RunsCode(Exception):
    pass


class _Inert:
    """Stands for whatever a pickle imports. Using it is what would run code."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        raise _RunsCode

    @classmethod
    def __setstate__(cls, state: Any) -> NoReturn:
        raise _RunsCode


class _Reader(pickle._Unpickler):
    """The unpickler written in Python, which imports through these alone. A reader of our own would
    differ from the real one somewhere, and what differs is a way past it."""

    imports = False

    def find_class(self, module: str, name: str) -> type[_Inert]:
        if not (_NAME.fullmatch(module) and _NAME.fullmatch(name)):
            raise pickle.UnpicklingError(name)  # prose
        self.imports = True
        return _Inert

    def get_extension(self, code: int) -> NoReturn:
        raise _RunsCode

    def persistent_load(self, pid: Any) -> None:
        return None


def is_text_pickle(data: bytes) -> bool:
    """Also one that breaks off: by its end, what came before has run. A file may hold several."""
    file = io.BytesIO(data)
    while file.tell() < len(data):
        reader = _Reader(file, encoding="latin1")
        try:
            reader.load()
        except _RunsCode:
            return True
        except Exception:  # noqa: BLE001  # bad streams raise many kinds; each ends the reading
            return False
        if reader.imports:
            return True
    return False
