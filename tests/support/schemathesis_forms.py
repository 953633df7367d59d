"""What Schemathesis cannot write by itself; it loads this by `SCHEMATHESIS_HOOKS`."""

from typing import Any

import msgspec
import schemathesis
from schemathesis import SerializationContext

from session.wire import MEDIA


@schemathesis.serializer(MEDIA)
def message_pack(_: SerializationContext, value: Any) -> bytes:
    """What the format cannot hold is sent as bytes that are not of it."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=str)
    except (OverflowError, UnicodeEncodeError):
        return repr(value).encode(errors="replace")
