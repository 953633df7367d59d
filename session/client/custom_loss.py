"""A loss that is computed in the caller's process, exact by two passes (losses.md, rule 4).

The first pass gives the log-probabilities; the gradient of the caller's loss with respect to them
becomes the weights of a cross-entropy, negated, in the second.
"""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from session import wire
from session.client.errors import InvalidInput
from session.client.future import APIFuture
from session.client.lane import Lane
from session.client.values import Datum, ForwardBackwardOutput, wire_data

if TYPE_CHECKING:
    from session.client.torch_bridge import CustomLoss


def submit(
    lane: Lane, data: Sequence[Datum], loss_fn: "CustomLoss"
) -> APIFuture[ForwardBackwardOutput]:
    packed = [
        wire.Datum(datum.tokens, {"target_tokens": datum.inputs["target_tokens"]})
        for datum in wire_data(data, "cross_entropy")
    ]

    async def work() -> Coroutine[Any, Any, ForwardBackwardOutput]:
        first = await lane.outcome(await lane.send(wire.Forward(packed)))
        loss, metrics, weighted = await lane.outside(
            _weighted, loss_fn, list(data), packed, first.result
        )
        second = await lane.send(wire.ForwardBackward(weighted))
        return _finished(lane, second, {**metrics, "loss:sum": loss})

    return lane.submit(work, adds_gradient=True)


def _weighted(
    loss_fn: "CustomLoss",
    data: Sequence[Datum],
    packed: Sequence[wire.Datum],
    result: wire.Result | None,
) -> tuple[float, dict[str, float], list[wire.Datum]]:
    from session.client.torch_bridge import differentiate

    found = result.data if result else []
    if len(found) != len(packed):
        raise InvalidInput(f"{len(packed)} datums were sent, {len(found)} came back")
    logprobs = [each.logprobs.array() for each in found]
    loss, metrics, gradients = differentiate(loss_fn, data, logprobs)
    weighted = [
        wire.Datum(datum.tokens, {**datum.inputs, "weights": wire.Tensor.of(-gradient)})
        for datum, gradient in zip(packed, gradients, strict=True)
    ]
    return loss, metrics, weighted


async def _finished(
    lane: Lane, operation: wire.Operation, metrics: dict[str, float]
) -> ForwardBackwardOutput:
    done = await lane.outcome(operation)
    output = ForwardBackwardOutput.of(done.result or wire.Result())
    surrogate = {"surrogate_loss:sum": output.loss}
    return ForwardBackwardOutput(output.loss_fn_outputs, {**output.metrics, **surrogate, **metrics})
