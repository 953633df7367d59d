"""What the worker and the api say to each other about one sampling request: length-prefixed
MessagePack. It carries only what may be lost; the row is the truth."""

import struct
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime

import msgspec
import numpy as np

from session import wire
from session.engine.port import SampleChunk

_PREFIX = struct.Struct("<I")


class Target(msgspec.Struct, frozen=True):
    """Which weights: `weights` is None for the plain base, else the id of what `kind` says."""

    kind: str  # base, session, version, sampler
    base_name: str
    base_digest: str
    base_path: str
    end_ids: list[int]
    weights: str | None = None
    session_id: str | None = None
    prefix: str = ""
    files: list[tuple[str, int, str]] = []  # of a version or sampler weights: path, size, sha256
    active_at: datetime | None = None  # of a session or its sampler weights: its last activity


class Ask(msgspec.Struct, frozen=True):
    request_id: str
    account_id: str
    form: wire.Sampling
    target: Target
    is_streamed: bool = False  # its reader gets tokens as they come, and pays for those if it goes


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    index: int
    tokens: list[int]
    logprobs: list[float]
    stop_reason: str | None
    prompt_logprobs: wire.Tensor | None
    cached_tokens: int = 0


class End(msgspec.Struct, frozen=True, tag="end"):
    samples: wire.Samples


class Error(msgspec.Struct, frozen=True, tag="error"):
    failure: wire.Failure


Frame = Chunk | End | Error


def from_engine(chunk: SampleChunk) -> Chunk:
    scores = chunk.prompt_logprobs
    packed = None if scores is None else wire.Tensor.of(scores)
    return Chunk(
        chunk.index,
        list(chunk.tokens),
        list(chunk.logprobs),
        chunk.stop_reason,
        packed,
        chunk.cached_tokens,
    )


def to_engine(chunk: Chunk) -> SampleChunk:
    scores = chunk.prompt_logprobs
    return SampleChunk(
        chunk.index,
        tuple(chunk.tokens),
        tuple(chunk.logprobs),
        chunk.stop_reason,
        None if scores is None else scores.array(),
        chunk.cached_tokens,
    )


def encode(frame: Frame) -> bytes:
    packed = msgspec.msgpack.encode(frame)
    return _PREFIX.pack(len(packed)) + packed


async def decode(stream: AsyncIterator[bytes]) -> AsyncGenerator[Frame]:
    """Frames as they come. A stream that stops in the middle of one simply ends."""
    buffer = bytearray()
    async for data in stream:
        buffer += data
        while len(buffer) >= _PREFIX.size:
            (length,) = _PREFIX.unpack_from(buffer)
            end = _PREFIX.size + length
            if len(buffer) < end:
                break
            yield msgspec.msgpack.decode(bytes(buffer[_PREFIX.size : end]), type=Frame)
            del buffer[:end]


class Gathering:
    """Chunks of one request, put together as they pass."""

    def __init__(self, request_id: str, *, prompt_tokens: int, n: int) -> None:
        self._id = request_id
        self._prompt_tokens = prompt_tokens
        self._tokens: list[list[int]] = [[] for _ in range(n)]
        self._logprobs: list[list[float]] = [[] for _ in range(n)]
        self._reasons = ["cut"] * n
        self._scores: wire.Tensor | None = None
        self._cached_tokens = 0

    def add(self, chunk: Chunk) -> None:
        self._cached_tokens += chunk.cached_tokens
        if chunk.prompt_logprobs is not None:
            self._scores = chunk.prompt_logprobs
        if chunk.index < 0:
            return
        self._tokens[chunk.index] += chunk.tokens
        self._logprobs[chunk.index] += chunk.logprobs
        self._reasons[chunk.index] = chunk.stop_reason or self._reasons[chunk.index]

    def samples(self) -> wire.Samples:
        parts = zip(self._tokens, self._logprobs, self._reasons, strict=True)
        return wire.Samples(
            id=self._id,
            sequences=[
                wire.Sequence(
                    wire.Tensor.of(np.array(tokens, dtype=np.int64)),
                    wire.Tensor.of(np.array(logprobs, dtype=np.float32)),
                    reason,
                )
                for tokens, logprobs, reason in parts
            ],
            prompt_logprobs=self._scores,
            prompt_tokens=self._prompt_tokens,
            sampled_tokens=sum(map(len, self._tokens)),
            cached_tokens=self._cached_tokens,
        )
