"""An operation that was just stored, and the answer that goes on until it has ended."""

import httpx

from session import wire


class Following:
    """`stored` is the operation as it was taken in. `ended` may be asked for once."""

    def __init__(self, stored: wire.Operation, answer: "Frames | None" = None) -> None:
        self.stored = stored
        self._answer = answer

    @classmethod
    async def read(cls, response: httpx.Response) -> "Following":
        """Raises httpx's TransportError, and WireError for an answer in another form."""
        if response.headers.get("content-type") != wire.FRAMES:
            return cls(wire.unpack(await response.aread(), wire.Operation))
        answer = Frames(response)
        try:
            return cls(wire.unpack(await answer.take() or b"", wire.Operation), answer)
        except BaseException:
            await answer.close()
            raise

    @property
    def was_held(self) -> bool:
        """Whether the service was to go on with its answer."""
        return self._answer is not None

    async def ended(self) -> wire.Operation | None:
        """None where the answer broke off or was over before the operation."""
        if self._answer is None:
            return None
        try:
            packed = await self._answer.take()
            await self._answer.finish()
            return None if packed is None else wire.unpack(packed, wire.Operation)
        except (httpx.TransportError, wire.WireError):
            return None
        finally:
            await self._answer.close()


class Frames:
    """A body, frame by frame."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_raw()
        self._held = bytearray()

    async def take(self) -> bytes | None:
        """None at its end."""
        while (packed := wire.unframe(self._held)) is None:
            piece = await anext(self._pieces, None)
            if piece is None:
                return None
            self._held += piece
        return packed

    async def finish(self) -> None:
        """Nothing more is expected; a connection is used again once its answer is read whole."""
        while await anext(self._pieces, None) is not None:
            pass

    async def close(self) -> None:
        await self._response.aclose()
