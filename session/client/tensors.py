"""Tensors and token sequences as a caller writes them. Nothing here imports torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from session import wire
from session.client.checks import of_type
from session.client.errors import InvalidInput

if TYPE_CHECKING:
    from session.client.torch_bridge import Tensor

Array = npt.NDArray[Any]
TensorLike = Union["TensorData", "Tensor", Array, Sequence[Any]]


@dataclass(eq=False)
class TensorData:
    """Numbers with a dtype (`int64` or `float32`) and a shape. `data` is kept flat."""

    data: Any
    dtype: wire.DType
    shape: list[int] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("int64", "float32"):
            raise InvalidInput(f"dtype must be int64 or float32, not {self.dtype!r}")
        flat = np.asarray(self.data, dtype=self.dtype).reshape(-1)
        self.shape = [flat.size] if self.shape is None else list(self.shape)
        if int(np.prod(self.shape)) != flat.size:
            raise InvalidInput(f"{flat.size} values do not fill the shape {self.shape}")
        self.data = flat

    @classmethod
    def from_numpy(cls, array: Array) -> "TensorData":
        """Integers become int64; floats and booleans float32."""
        dtype: wire.DType = "int64" if np.issubdtype(array.dtype, np.integer) else "float32"
        return cls(array.astype(dtype), dtype, list(array.shape))

    @classmethod
    def from_torch(cls, tensor: "Tensor") -> "TensorData":
        """From any device, detached; bfloat16 becomes float32."""
        if not hasattr(tensor, "detach"):
            raise InvalidInput(f"expected numbers or a tensor, not {type(tensor).__name__}")
        plain = tensor.detach().cpu()
        return cls.from_numpy((plain.float() if plain.is_floating_point() else plain).numpy())

    def to_numpy(self) -> Array:
        found: Array = self.data.reshape(self.shape)
        return found

    def to_torch(self) -> "Tensor":
        from session.client.torch_bridge import from_array

        return from_array(self.to_numpy())

    def __len__(self) -> int:
        return len(self.to_numpy())

    def __iter__(self) -> Iterator[Any]:
        """Plain numbers, or a list for each row."""
        return iter(self.tolist())

    def tolist(self) -> list[Any]:
        found: list[Any] = self.to_numpy().tolist()
        return found


def tensor_data(value: TensorLike) -> TensorData:
    """A list, numpy array or torch tensor as TensorData."""
    if isinstance(value, TensorData):
        return value
    if not isinstance(value, np.ndarray | Sequence):
        return TensorData.from_torch(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"expected numbers in rows of one length, not {array.dtype}")
    return TensorData.from_numpy(array)


@dataclass(frozen=True)
class EncodedTextChunk:
    tokens: Sequence[int]

    def __post_init__(self) -> None:
        if isinstance(self.tokens, str | bytes):
            raise InvalidInput(
                f"tokens must be token ids, not text ({self.tokens[:40]!r}): encode it with "
                "get_tokenizer().encode(text)"
            )
        try:
            array = np.asarray(self.tokens)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(
                f"tokens must be a flat sequence of whole numbers: {error}"
            ) from None
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InvalidInput(
                f"tokens must be a flat sequence of whole numbers, not {array!r:.60}"
            )

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class ModelInput:
    """The tokens a model reads, in chunks that are simply joined."""

    chunks: list[EncodedTextChunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        of_type("chunks", self.chunks, list, "a list of EncodedTextChunk; see ModelInput.from_ints")
        for index, chunk in enumerate(self.chunks):
            of_type(f"chunks[{index}]", chunk, EncodedTextChunk, "an EncodedTextChunk")

    @classmethod
    def from_ints(cls, tokens: Sequence[int]) -> "ModelInput":
        return cls([EncodedTextChunk(tokens)])

    @classmethod
    def empty(cls) -> "ModelInput":
        return cls()

    @property
    def length(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    def to_ints(self) -> list[int]:
        return [int(token) for chunk in self.chunks for token in chunk.tokens]

    def append(self, chunk: EncodedTextChunk) -> "ModelInput":
        return ModelInput([*self.chunks, chunk])

    def append_int(self, token: int) -> "ModelInput":
        return self.append(EncodedTextChunk([token]))

    def to_wire(self, name: str) -> wire.Tensor:
        """`name` says in an error which input was wrong."""
        parts = [np.asarray(chunk.tokens) for chunk in self.chunks if chunk.length]
        if not parts:
            raise InvalidInput(f"{name} holds no tokens")
        return wire.Tensor.of(np.concatenate(parts))
