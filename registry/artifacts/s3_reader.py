"""Reads one object of a bucket in order, in memory that does not grow with it."""

from typing import Any

from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

CUT = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)


class Reader:
    """One object, or a range of it, in order. Where a body is cut, the rest is asked for again."""

    def __init__(
        self, client: Any, where: dict[str, str], attempts: int, start: int, end: int | None
    ) -> None:
        self._client = client
        self._where = where
        self._attempts = attempts
        self._offset = start
        self._end = end
        self._etag = ""
        self._body: Any = None

    def read(self, size: int) -> bytes:
        for _ in range(self._attempts - 1):
            try:
                return self._read(size)
            except CUT:
                self.close()
        return self._read(size)

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
        self._body = None

    def _read(self, size: int) -> bytes:
        if self._body is None:
            answer = self._client.get_object(**self._where, **self._rest())
            self._body, self._etag = answer["Body"], answer["ETag"]
        data: bytes = self._body.read(size)
        self._offset += len(data)
        return data

    def _rest(self) -> dict[str, str]:
        if not self._offset and self._end is None:
            return {}
        last = "" if self._end is None else self._end - 1
        same = {"IfMatch": self._etag} if self._etag else {}
        return {"Range": f"bytes={self._offset}-{last}", **same}
