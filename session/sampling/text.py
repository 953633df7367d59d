"""Tokens into text while they come: whole characters only, and nothing of a stop string."""

from collections.abc import Sequence

from tokenizers import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Text of a growing list of tokens. Special tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # the last tokens already given, without which spaces go lost
        self._waiting: list[int] = []

    def push(self, tokens: Sequence[int]) -> str:
        """What can be said now; the bytes of an unfinished character wait."""
        self._waiting += tokens
        text = self._text()
        return "" if text.endswith(_BROKEN) else self._give(text)

    def flush(self) -> str:
        """Whatever still waits: bytes that never became a character show as U+FFFD."""
        return self._give(self._text())

    def _text(self) -> str:
        known = self._decode(self._context)
        return self._decode(self._context + self._waiting)[len(known) :]

    def _give(self, text: str) -> str:
        if text:
            self._context, self._waiting = self._waiting, []
        return text

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text


class StopCutter:
    """Passes text on up to the first stop string; holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of `text` begin `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
