"""Sampled tokens as OpenAI's answers, whole or as a stream. It knows no database and no model."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from registry.kit.clock import now
from registry.kit.errors import ServiceError
from registry.kit.ids import new_id
from session.api.openai_errors import error_body
from session.engine.port import SampleChunk, Tokens
from session.sampling.chat import ChatTokenizer
from session.sampling.text import Detokenizer, StopCutter

DONE = b"data: [DONE]\n\n"
_LEAST_LOGPROB = -9999.0  # OpenAI's own stand-in for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True)
class Draw:
    """What is to be sampled. `stop` adds strings to the model's own end tokens."""

    prompt: Tokens
    max_tokens: int
    n: int
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]


Generate = Callable[[Draw], AsyncIterator[SampleChunk]]


@dataclass(frozen=True, slots=True)
class Scored:
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to choice `index`."""

    index: int
    text: str
    scored: Sequence[Scored] = ()
    finish_reason: str | None = None


class Form(Protocol):
    """How one of the two endpoints writes its choices."""

    id_prefix: str
    whole: str
    chunk: str

    def choice(self, piece: Piece, *, logprobs: bool) -> dict[str, Any]: ...

    def opening(self, index: int) -> dict[str, Any] | None: ...

    def delta(self, piece: Piece, *, logprobs: bool) -> dict[str, Any]: ...


class ChatForm:
    id_prefix = "chatcmpl"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def choice(self, piece: Piece, *, logprobs: bool) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {**self._common(piece, logprobs), "message": message}

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {**self._common(Piece(index, ""), False), "delta": delta}

    def delta(self, piece: Piece, *, logprobs: bool) -> dict[str, Any]:
        delta = {"content": piece.text} if piece.text else {}
        return {**self._common(piece, logprobs and bool(piece.scored)), "delta": delta}

    def _common(self, piece: Piece, logprobs: bool) -> dict[str, Any]:
        content = [
            {
                "token": scored.text,
                "logprob": scored.logprob,
                "bytes": None if "\ufffd" in scored.text else list(scored.text.encode()),
                "top_logprobs": [],
            }
            for scored in piece.scored
        ]
        return {
            "index": piece.index,
            "logprobs": {"content": content, "refusal": None} if logprobs else None,
            "finish_reason": piece.finish_reason,
        }


class TextForm:
    id_prefix = "cmpl"
    whole = chunk = "text_completion"

    def choice(self, piece: Piece, *, logprobs: bool) -> dict[str, Any]:
        scores = {
            "tokens": [scored.text for scored in piece.scored],
            "token_logprobs": [scored.logprob for scored in piece.scored],
            "top_logprobs": None,
            "text_offset": None,
        }
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": scores if logprobs else None,
            "finish_reason": piece.finish_reason,
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, piece: Piece, *, logprobs: bool) -> dict[str, Any]:
        return self.choice(piece, logprobs=logprobs)


class _Choice:
    def __init__(self, index: int, chat: ChatTokenizer, stops: Sequence[str]) -> None:
        self.finished = False
        self._index = index
        self._chat = chat
        self._detokenizer = Detokenizer(chat.tokenizer)
        self._cutter = StopCutter(stops)

    def take(self, chunk: SampleChunk) -> Piece:
        text = self._cutter.push(self._detokenizer.push(chunk.tokens))
        if chunk.stop_reason and not self._cutter.stopped:
            text += self._cutter.push(self._detokenizer.flush())
            text += self._cutter.flush()
        reason = "stop" if self._cutter.stopped else chunk.stop_reason
        self.finished = reason is not None
        return Piece(self._index, text, self._scored(chunk), reason)

    def _scored(self, chunk: SampleChunk) -> list[Scored]:
        """End tokens are counted but not shown."""
        return [
            Scored(self._chat.token_text(token), max(float(logprob), _LEAST_LOGPROB))
            for token, logprob in zip(chunk.tokens, chunk.logprobs, strict=True)
            if token not in self._chat.special_ids
        ]


class Assembly:
    """Reads the chunks of one request and counts them."""

    def __init__(self, chat: ChatTokenizer, draw: Draw) -> None:
        self.prompt_tokens = len(draw.prompt)
        self.completion_tokens = 0
        self._choices = [_Choice(index, chat, draw.stop) for index in range(draw.n)]

    @property
    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    async def pieces(self, chunks: AsyncIterator[SampleChunk]) -> AsyncIterator[Piece]:
        """Read to the end, so that it counts as answered whole; only where stop strings have cut
        every choice before the source noticed is the rest not waited for."""
        ended: set[int] = set()
        async for chunk in chunks:
            self.completion_tokens += len(chunk.tokens)
            if chunk.stop_reason is not None:
                ended.add(chunk.index)
            choice = self._choices[chunk.index] if chunk.index >= 0 else None
            if choice is not None and not choice.finished:
                yield choice.take(chunk)
            if len(ended) < len(self._choices) and all(c.finished for c in self._choices):
                return


@dataclass(frozen=True, slots=True)
class Answer:
    """The envelope of one answer."""

    form: Form
    model: str
    logprobs: bool
    include_usage: bool = False
    running_usage: bool = False
    created: int = field(default_factory=lambda: int(now().timestamp()))
    id: str = field(default_factory=lambda: new_id("x").removeprefix("x_"))

    async def whole(
        self, chunks: AsyncIterator[SampleChunk], assembly: Assembly, *, n: int
    ) -> dict[str, Any]:
        gathered: list[list[Piece]] = [[] for _ in range(n)]
        async for piece in assembly.pieces(chunks):
            gathered[piece.index].append(piece)
        choices = [
            self.form.choice(_joined(index, pieces), logprobs=self.logprobs)
            for index, pieces in enumerate(gathered)
        ]
        return {**self._envelope(self.form.whole, choices), "usage": assembly.usage}

    async def events(
        self, chunks: AsyncIterator[SampleChunk], assembly: Assembly, *, n: int
    ) -> AsyncIterator[bytes]:
        """Server-sent events. An error after the first of them can only be one more of them."""
        for opening in self._openings(n):
            yield self._event([opening], assembly)
        try:
            async for piece in assembly.pieces(chunks):
                if piece.text or piece.finish_reason or (self.logprobs and piece.scored):
                    delta = self.form.delta(piece, logprobs=self.logprobs)
                    yield self._event([delta], assembly)
        except ServiceError as error:
            yield sse(error_body(error))
            return
        if self.include_usage:
            yield sse({**self._envelope(self.form.chunk, []), "usage": assembly.usage})
        yield DONE

    def _openings(self, n: int) -> Iterator[dict[str, Any]]:
        return (o for o in map(self.form.opening, range(n)) if o is not None)

    def _event(self, choices: list[dict[str, Any]], assembly: Assembly) -> bytes:
        body = self._envelope(self.form.chunk, choices)
        if self.include_usage:
            body["usage"] = assembly.usage if self.running_usage else None
        return sse(body)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{self.form.id_prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def sse(body: dict[str, Any]) -> bytes:
    return (
        b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


def _joined(index: int, pieces: Sequence[Piece]) -> Piece:
    return Piece(
        index,
        "".join(piece.text for piece in pieces),
        [scored for piece in pieces for scored in piece.scored],
        pieces[-1].finish_reason if pieces else None,
    )
