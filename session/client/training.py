"""The client of one training session."""

import math
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from session import wire
from session.client import custom_loss
from session.client.checks import numbers, of_type, optional_text, text, texts, whole
from session.client.connection import Connection
from session.client.errors import InvalidInput
from session.client.future import APIFuture
from session.client.heartbeat import Heartbeat
from session.client.lane import Lane
from session.client.records import Page, SessionInfo, StepMetrics
from session.client.sampling import SamplingClient, Source
from session.client.sessions import settled
from session.client.tokenizer import load_tokenizer
from session.client.values import (
    AdamParams,
    Datum,
    ForwardBackwardOutput,
    OptimStepResponse,
    SaveResponse,
    split_ref,
    wire_data,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from session.client.torch_bridge import CustomLoss


class TrainingClient:
    """Its calls return at once and run on the service strictly in the order they were made."""

    def __init__(self, connection: Connection, info: SessionInfo, group: str | None) -> None:
        self._connection = connection
        self._path = f"/v1/sessions/{info.id}"
        self._group = group
        self._lane = Lane(connection, info.id, info.last_number)
        self._step = info.step
        self.session_id = info.id
        self.name = info.name
        self.base_model = info.base_model
        self._heartbeat = Heartbeat(self, connection, self._path)

    def forward(
        self,
        data: Sequence[Datum],
        loss_fn: str = "cross_entropy",
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """The loss and the log-probabilities, without a gradient."""
        body = wire.Forward(
            wire_data(data, loss_fn), loss_fn, numbers("loss_fn_config", loss_fn_config)
        )
        return self._lane.operate(body, _output)

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss_fn: str = "cross_entropy",
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Add the gradient of the summed loss to what the next `optim_step` applies."""
        body = wire.ForwardBackward(
            wire_data(data, loss_fn), loss_fn, numbers("loss_fn_config", loss_fn_config)
        )
        return self._lane.operate(body, _output)

    def forward_backward_custom(
        self, data: Sequence[Datum], loss_fn: "CustomLoss"
    ) -> APIFuture[ForwardBackwardOutput]:
        """The exact gradient of any torch function of the log-probabilities of the targets.

        `loss_fn(data, logprobs)` gets one tensor a datum and returns (loss, metrics). It runs in
        a thread of this process. Calls made meanwhile wait behind both of its passes.
        """
        return custom_loss.submit(self._lane, data, loss_fn)

    def optim_step(self, adam_params: AdamParams | None = None) -> APIFuture[OptimStepResponse]:
        """One AdamW step over the summed gradient, which it clears."""
        params = AdamParams() if adam_params is None else adam_params
        of_type("adam_params", params, AdamParams, "an AdamParams(learning_rate=...)")
        return self._lane.operate(params.to_wire(), self._stepped)

    def clear_gradient(self) -> APIFuture[None]:
        return self._lane.operate(wire.ClearGradient(), _nothing)

    def save_state(
        self,
        description: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        group: str | None = None,
    ) -> APIFuture[SaveResponse]:
        """Register weights and optimizer as the next version: one that can be resumed."""
        return self._save("state", description, metadata, metrics, group)

    def save_weights_for_sampler(
        self,
        description: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        group: str | None = None,
    ) -> APIFuture[SaveResponse]:
        """Register the adapter alone as the next version: one to sample from."""
        return self._save("adapter", description, metadata, metrics, group)

    def save_merged(
        self,
        description: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        group: str | None = None,
    ) -> APIFuture[SaveResponse]:
        """Register base and adapter merged as the next version: one that can be promoted."""
        return self._save("merged", description, metadata, metrics, group)

    def save_weights_and_get_sampling_client(self) -> SamplingClient:
        """A client of the weights at this place in the order of calls, without a version.

        It is returned at once; its samples wait until the weights are stored. They live as long
        as this session.
        """
        stored = self._lane.operate(wire.Save("sampler"), _weights)
        return SamplingClient(self._connection, stored, self.base_model)

    def load_state(self, ref: str) -> APIFuture[None]:
        """Replace the weights by those of a version, with a fresh optimizer."""
        split_ref(ref)
        return self._lane.operate(wire.Load(ref), _nothing)

    def load_state_with_optimizer(self, ref: str) -> APIFuture[None]:
        split_ref(ref)
        return self._lane.operate(wire.Load(ref, with_optimizer=True), _nothing)

    def log(self, metrics: Mapping[str, float], step: int | None = None) -> APIFuture[None]:
        """Keep numbers of your own beside the session's; `step` None is the last one seen done."""
        found = numbers("metrics", metrics)
        for key, value in found.items():
            if not math.isfinite(value):
                raise InvalidInput(f"metrics[{key!r}] is {value}, which JSON cannot carry")
        at = self._step if step is None else whole("step", step)
        return self._connection.background.start(self._logged(at, found), "log")

    def metrics(self) -> list[StepMetrics]:
        """Each step's loss, tokens, gradient norm and what `log` added."""
        work = self._connection.get(f"{self._path}/metrics", Page[StepMetrics])
        return self._connection.background.run(work).data

    def get_info(self) -> SessionInfo:
        return self._connection.background.run(self._connection.get(self._path, SessionInfo))

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The base model's tokenizer, served by the service and cached here."""
        return load_tokenizer(self._connection, self.base_model)

    def stop(self) -> SessionInfo:
        """End the session after everything submitted before, and wait until it has ended."""
        self._heartbeat.stop()
        return self._lane.submit(self._stop, "stop").result()

    def _save(
        self,
        kind: wire.SaveKind,
        description: str,
        metadata: Mapping[str, str] | None,
        metrics: Mapping[str, float] | None,
        group: str | None,
    ) -> APIFuture[SaveResponse]:
        body = wire.Save(
            kind,
            optional_text("group", group) or self._group,
            text("description", description),
            texts("metadata", metadata),
            numbers("metrics", metrics),
        )
        return self._lane.operate(body, _saved)

    def _stepped(self, operation: wire.Operation) -> OptimStepResponse:
        response = OptimStepResponse(_result(operation).metrics)
        self._step = response.step or self._step + 1
        return response

    async def _logged(self, step: int, metrics: Mapping[str, float]) -> None:
        body = {"step": step, "metrics": metrics}
        await self._connection.post(f"{self._path}/metrics", body, Any)

    async def _stop(self) -> Coroutine[Any, Any, SessionInfo]:
        info = await self._connection.post(f"{self._path}/stop", {}, SessionInfo)
        return settled(self._connection, info)


def _result(operation: wire.Operation) -> wire.Result:
    return operation.result or wire.Result()


def _output(operation: wire.Operation) -> ForwardBackwardOutput:
    return ForwardBackwardOutput.of(_result(operation))


def _saved(operation: wire.Operation) -> SaveResponse:
    result = _result(operation)
    return SaveResponse(result.version or "", operation.id, result.metrics)


def _weights(operation: wire.Operation) -> Source:
    return Source(weights=_result(operation).weights)


def _nothing(operation: wire.Operation) -> None:
    return None
