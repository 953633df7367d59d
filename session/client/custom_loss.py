"""A loss that is computed in the caller's process, exact by two passes (losses.md, rule 4).

The first pass gives the log-probabilities; the gradient of the caller's loss with respect to them
becomes the weights of a cross-entropy, negated, in the second.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from session import wire
from session.client.errors import InvalidInput
from session.client.following import Following
from session.client.future import APIFuture
from session.client.lane import Lane
from session.client.values import Datum, ForwardBackwardOutput, wire_data

if TYPE_CHECKING:
    from session.client.torch_bridge import CustomLoss

Differentiate = Callable[[Sequence[Datum], list[Any]], tuple[float, dict[str, float], list[Any]]]


def submit(
    lane: Lane, data: Sequence[Datum], loss_fn: "CustomLoss"
) -> APIFuture[ForwardBackwardOutput]:
    # Here rather than when it runs: that may be at the end of the script, too late to load torch.
    from session.client.torch_bridge import differentiate

    if not callable(loss_fn):
        raise InvalidInput(f"loss_fn must be a function, not {loss_fn!r}")
    gradient_of = partial(differentiate, loss_fn)
    packed = [
        wire.Datum(datum.tokens, {"target_tokens": datum.inputs["target_tokens"]})
        for datum in wire_data(data, "cross_entropy")
    ]
    kept = list(data)

    async def work() -> Coroutine[Any, Any, ForwardBackwardOutput]:
        first = await lane.outcome(await lane.send(wire.Forward(packed)))
        loss, metrics, weighted = await lane.outside(
            _weighted, gradient_of, kept, packed, first.result
        )
        second = await lane.send(wire.ForwardBackward(weighted))
        return _finished(lane, second, {**metrics, "loss:sum": loss})

    return lane.submit(work, "forward_backward_custom", adds_gradient=True)


def _weighted(
    gradient_of: Differentiate,
    data: Sequence[Datum],
    packed: Sequence[wire.Datum],
    result: wire.Result | None,
) -> tuple[float, dict[str, float], list[wire.Datum]]:
    found = result.data if result else []
    if len(found) != len(packed):
        raise InvalidInput(f"{len(packed)} datums were sent, {len(found)} came back")
    logprobs = [each.logprobs.array() for each in found]
    loss, metrics, gradients = gradient_of(data, logprobs)
    weighted = [
        wire.Datum(datum.tokens, {**datum.inputs, "weights": wire.Tensor.of(-gradient)})
        for datum, gradient in zip(packed, gradients, strict=True)
    ]
    return loss, metrics, weighted


async def _finished(
    lane: Lane, sent: Following, metrics: dict[str, float]
) -> ForwardBackwardOutput:
    done = await lane.outcome(sent)
    output = ForwardBackwardOutput.of(done.result or wire.Result())
    surrogate = {"surrogate_loss:sum": output.loss}
    return ForwardBackwardOutput(output.loss_fn_outputs, {**output.metrics, **surrogate, **metrics})
