"""The client of one fixed source of samples."""

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from session import wire
from session.client.checks import of_type, optional_text, text, whole
from session.client.connection import Connection
from session.client.errors import ConfigurationError, InvalidInput
from session.client.future import APIFuture
from session.client.tensors import ModelInput
from session.client.tokenizer import load_tokenizer
from session.client.values import DEFAULT_MAX_TOKENS, SampleResponse, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where samples come from: one of the four, named as on the wire."""

    model: str | None = None
    session: str | None = None
    source: str | None = None
    weights: str | None = None


class SamplingClient:
    """Requests run concurrently, in no order, as many as the caller makes."""

    def __init__(
        self, connection: Connection, source: Source | APIFuture[Source], base_model: str | None
    ) -> None:
        self._connection = connection
        self._source = source
        self.base_model = base_model

    def sample(
        self,
        prompt: ModelInput,
        sampling_params: SamplingParams | None = None,
        num_samples: int = 1,
        include_prompt_logprobs: bool = False,
    ) -> APIFuture[SampleResponse]:
        """`num_samples` independent continuations of one prompt, which is metered once."""
        if whole("num_samples", num_samples) < 1:
            raise InvalidInput(f"num_samples must be at least 1, not {num_samples}")
        params = SamplingParams() if sampling_params is None else sampling_params
        request = _request(prompt, params, num_samples, bool(include_prompt_logprobs))
        return self._connection.background.start(self._drawn(request), "sample")

    def compute_logprobs(self, prompt: ModelInput) -> APIFuture[list[float | None]]:
        """The log-probability of each prompt token, None for the first."""
        request = _request(prompt, SamplingParams(max_tokens=0), 1, True)
        return self._connection.background.start(self._scored(request), "compute_logprobs")

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The base model's tokenizer, served by the service and cached here."""
        if self.base_model is None:
            raise ConfigurationError("the base model of these sampler weights is not known here")
        return load_tokenizer(self._connection, self.base_model)

    async def _scored(self, request: wire.Sampling) -> list[float | None]:
        return (await self._drawn(request)).prompt_logprobs or []

    async def _drawn(self, request: wire.Sampling) -> SampleResponse:
        source = self._source
        if isinstance(source, APIFuture):
            source = await source
        request = msgspec.structs.replace(request, **msgspec.to_builtins(source))
        async with self._connection.sampling:
            samples = await self._connection.send("/v1/samples", request, wire.Samples, read_s=None)
        return SampleResponse.of(samples)


def _request(
    prompt: ModelInput, params: SamplingParams, n: int, prompt_logprobs: bool
) -> wire.Sampling:
    of_type("prompt", prompt, ModelInput, "a ModelInput, such as ModelInput.from_ints(ids)")
    advice = "a SamplingParams, such as SamplingParams(max_tokens=16)"
    of_type("sampling_params", params, SamplingParams, advice)
    return wire.Sampling(
        prompt=prompt.to_wire("prompt"),
        token=uuid.uuid4().hex,
        max_tokens=DEFAULT_MAX_TOKENS if params.max_tokens is None else int(params.max_tokens),
        n=int(n),
        temperature=float(params.temperature),
        top_k=int(params.top_k),
        top_p=float(params.top_p),
        seed=None if params.seed is None else int(params.seed),
        stop=_stop(params),
        prompt_logprobs=prompt_logprobs,
        deterministic=bool(params.deterministic),
    )


def _stop(params: SamplingParams) -> list[str | int] | str | None:
    if params.stop is None or isinstance(params.stop, str):
        return optional_text("stop", params.stop)
    if not isinstance(params.stop, Sequence):
        raise InvalidInput(f"stop must be a string, or a list of strings or ids: {params.stop!r}")
    return [
        text(f"stop[{i}]", each) if isinstance(each, str) else whole(f"stop[{i}]", each)
        for i, each in enumerate(params.stop)
    ]
