"""One object of a bucket into one file: ranges side by side, and its SHA-256 made meanwhile.

The SDK's own download begins again from nothing after an interruption.
"""

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry.artifacts.errors import StoreRefused
from registry.artifacts.partial import Partial, Span, open_partial
from registry.artifacts.s3_reader import CUT
from registry.artifacts.store import CHUNK, Progress


class Stopped(Exception):
    """Nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class Download:
    client: Any
    where: dict[str, str]
    etag: str
    size: int
    attempts: int
    progress: Progress | None
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, path: Path, *, step: int, concurrency: int) -> str:
        """The SHA-256. What is missing is fetched, and the file is read along behind."""
        with open_partial(path, mark=self.etag, size=self.size, step=step) as partial:
            digest = self._run(partial, concurrency)
            partial.is_whole = True
        return digest

    def _run(self, partial: Partial, concurrency: int) -> str:
        with ThreadPoolExecutor(concurrency) as pool:
            coming = {span[0]: pool.submit(self._fetch, partial, span) for span in partial.missing}
            try:
                return self._digest(partial, coming)
            except BaseException:
                self.stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _digest(self, partial: Partial, coming: dict[int, Future[None]]) -> str:
        digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
        with partial.path.open("rb", buffering=0) as file:
            for start, end in partial.spans:
                if start in coming:
                    coming.pop(start).result()
                while start < end and (count := file.readinto(buffer[: end - start])):
                    digest.update(buffer[:count])
                    start += count
        return digest.hexdigest()

    def _fetch(self, partial: Partial, span: Span) -> None:
        """A body that is cut is asked for again from there."""
        offset, end = span
        for attempt in range(1, self.attempts + 1):
            try:
                for data in self._pieces(offset, end):
                    partial.write(data, offset)
                    offset += len(data)
                    if self.progress is not None:
                        self.progress(len(data))
                break
            except CUT:
                if attempt == self.attempts:
                    raise
        partial.done(span)

    def _pieces(self, offset: int, end: int) -> Iterator[bytes]:
        if self.stop.is_set():
            raise Stopped
        answer = self.client.get_object(
            **self.where, Range=f"bytes={offset}-{end - 1}", IfMatch=self.etag
        )
        body = answer["Body"]
        if answer["ContentLength"] != end - offset:
            body.close()
            raise StoreRefused("InvalidRange", "it answers a range with other bytes than those")
        try:
            while data := body.read(CHUNK):
                yield data
                if self.stop.is_set():
                    raise Stopped
        finally:
            body.close()
