"""The one versioned binary form of operations and samples, shared by client, wires and log.

MessagePack by msgspec. It is what travels from our client, what the log stores, and what a result
is kept as. `version` moves when a reader of the old form could no longer read the new one. The
same structs read JSON (`data` is then base64 or a list of numbers), which is handy with curl.
"""

import math
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

VERSION = 1
MEDIA = "application/x-msgpack"
FRAMES = "application/vnd.modelyard.frames"
"""Several of these structs as they come, each behind its length."""

DType = Literal["int64", "float32"]


class WireError(ValueError):
    """A body that is not of this form. The message names the field."""


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`data` is little-endian and C-contiguous; `shape` is absent for one dimension."""

    dtype: DType
    data: bytes | list[float]
    shape: tuple[int, ...] | None = None

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> "Tensor":
        dtype: DType = "int64" if np.issubdtype(array.dtype, np.integer) else "float32"
        packed = np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<"))
        return cls(dtype, packed.tobytes(), None if array.ndim == 1 else array.shape)

    def array(self) -> npt.NDArray[Any]:
        """The numbers, writable. Raises WireError where bytes and shape disagree."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        if isinstance(self.data, list):
            if self.dtype == "int64" and not all(map(_is_int64, self.data)):
                raise WireError("an int64 tensor holds a number that is not whole, or over 64 bits")
            with np.errstate(over="ignore"):  # an infinity, which is refused by whoever wants none
                flat = np.array(self.data, np.float64).astype(self.dtype)
        elif len(self.data) % dtype.itemsize:
            raise WireError(f"{len(self.data)} bytes are no whole number of {self.dtype} values")
        else:
            flat = np.frombuffer(self.data, dtype=dtype).astype(self.dtype)
        if self.shape is None:
            return flat
        if any(n < 0 for n in self.shape) or math.prod(self.shape) != flat.size:
            raise WireError(f"{flat.size} values do not fill the shape {list(self.shape)}")
        return flat.reshape(self.shape)


def _is_int64(number: float) -> bool:
    return number.is_integer() and -(2.0**63) <= number < 2.0**63


class Datum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Tensor
    inputs: dict[str, Tensor]


class Lora(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int
    alpha: float
    targets: tuple[str, ...]
    seed: int


class Create(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="create"):
    """Operation 0 of every session: a fresh adapter, or one taken from a version."""

    lora: Lora
    source: str | None = None  # GROUP@VERSION
    with_optimizer: bool = False


class Forward(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="forward"):
    data: list[Datum]
    loss: str = "cross_entropy"
    config: dict[str, float] = {}


class ForwardBackward(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="forward_backward"
):
    data: list[Datum]
    loss: str = "cross_entropy"
    config: dict[str, float] = {}


class OptimStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="optim_step"):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float | None = None
    lora_plus_ratio: float | None = None


class ClearGradient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="clear_gradient"):
    pass


SaveKind = Literal["state", "adapter", "merged", "sampler"]


class Save(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="save"):
    """`sampler` weights get no version; every other kind is the next version of the group."""

    kind: SaveKind
    group: str | None = None  # None: the session's own
    description: str = ""
    metadata: dict[str, str] = {}
    metrics: dict[str, float] = {}


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="load"):
    source: str  # GROUP@VERSION
    with_optimizer: bool = False


def kind_of(body: "Body") -> str:
    """The tag that names the body's form."""
    return str(body.__struct_config__.tag)


Body = Create | Forward | ForwardBackward | OptimStep | ClearGradient | Save | Load


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client posts to `/v1/sessions/{id}/operations`. Numbers start at 1, without gaps."""

    number: int
    token: str
    body: Body
    version: int = VERSION


class DatumResult(msgspec.Struct, frozen=True):
    loss: float
    logprobs: Tensor


class Result(msgspec.Struct, frozen=True):
    """The outcome of a completed operation. Keys of `metrics` may end in `:sum` or `:mean`."""

    metrics: dict[str, float] = {}
    data: list[DatumResult] = []
    version: str | None = None  # GROUP@VERSION, of a save
    weights: str | None = None  # sampler weights, of a save
    tokens: int = 0  # metered


class Failure(msgspec.Struct, frozen=True):
    """Why an operation failed. `kind` is one of the service's error kinds."""

    kind: str
    message: str


OperationStatus = Literal["pending", "running", "completed", "failed", "skipped"]


class Operation(msgspec.Struct, frozen=True):
    """An operation as the service answers it."""

    id: str
    session: str
    number: int
    kind: str
    status: OperationStatus
    result: Result | None = None
    error: Failure | None = None


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client posts to `/v1/samples`. Exactly one of the four sources is named.

    The same `token` gives the same answer again. `stop` None means the model's own end tokens;
    ids or strings add to those; an empty list means that only the length stops. `deterministic`
    computes apart from all other requests: the same one then gives the same bits on one machine.
    """

    prompt: Tensor
    token: str
    max_tokens: int = 0
    n: int = 1
    model: str | None = None  # a base model, without adapter
    session: str | None = None  # its current weights
    source: str | None = None  # GROUP@VERSION
    weights: str | None = None  # sampler weights
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop: list[str | int] | str | None = None
    prompt_logprobs: bool = False
    version: int = VERSION
    deterministic: bool = False


class Sequence(msgspec.Struct, frozen=True):
    tokens: Tensor
    logprobs: Tensor
    stop_reason: str


class Samples(msgspec.Struct, frozen=True):
    id: str
    sequences: list[Sequence]
    prompt_logprobs: Tensor | None = None  # NaN at 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0  # of the prompt's, what was not computed again


T = TypeVar("T")


def pack(value: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(value)


def frame(packed: bytes) -> bytes:
    """Behind its length, in four bytes."""
    return len(packed).to_bytes(4, "big") + packed


def unframe(held: bytearray) -> bytes | None:
    """Take the first frame out of what has come of a body; None while it is not whole."""
    if len(held) < 4 or len(held) < (end := 4 + int.from_bytes(held[:4], "big")):
        return None
    packed = bytes(held[4:end])
    del held[:end]
    return packed


def unpack(data: bytes, form: type[T], *, json: bool = False) -> T:
    """Read one struct. Raises WireError with the path of the field that does not fit."""
    decode = msgspec.json.decode if json else msgspec.msgpack.decode
    try:
        return decode(data, type=form)
    except msgspec.DecodeError as error:
        raise WireError(str(error)) from None
    except RecursionError:
        raise WireError("nested too deeply") from None
