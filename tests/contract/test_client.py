"""The Python client over real HTTP, against a service that keeps its log in memory."""

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import modelyard as my
from session import wire
from support.fake_service import KEY, MODEL, FakeService, Trouble
from support.training import eventually


@pytest.fixture
def service(url: str) -> Iterator[my.ServiceClient]:
    with my.ServiceClient(url, KEY, group="facts", timeout=30) as service:
        yield service


@pytest.fixture
def training(service: my.ServiceClient) -> my.TrainingClient:
    return service.create_lora_training_client(MODEL, rank=8)


def datum(*targets: int) -> my.Datum:
    return my.Datum(my.ModelInput.from_ints(list(targets)), {"target_tokens": list(targets)})


def kinds(fake: FakeService) -> list[str]:
    assert [sent.number for sent in fake.log] == list(range(1, len(fake.log) + 1))
    return [str(type(sent.body).__struct_config__.tag) for sent in fake.log]


def test_a_step_gives_loss_logprobs_and_metrics(training: my.TrainingClient) -> None:
    output = training.forward_backward([datum(1, 2), datum(3)]).result(5)
    assert output.loss == pytest.approx(0.6)
    assert output.loss_fn_outputs[1]["logprobs"].tolist() == pytest.approx([-0.3])
    step = training.optim_step(my.AdamParams(learning_rate=1e-3)).result(5)
    assert (step.step, step.metrics["grad_norm"]) == (1, 1.0)


def test_a_result_that_is_not_kept_any_more_is_no_empty_result(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.pruned = {1}
    with pytest.raises(my.OperationFailed, match="not kept any more"):
        training.forward_backward([datum(1, 2)]).result(30)


def test_calls_return_before_their_outcome_and_run_in_order(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.held = {1}
    first, second = training.forward([datum(1)]), training.optim_step()
    assert second.result(5).step == 1
    assert not first.done()
    with pytest.raises(TimeoutError, match="wait for it again"):
        first.result(0.01)
    fake.held.clear()
    assert first.result(5).loss == pytest.approx(0.1)
    assert kinds(fake) == ["forward", "optim_step"]


def test_calls_of_many_threads_get_numbers_without_gaps(
    training: my.TrainingClient, fake: FakeService
) -> None:
    def work(target: int) -> None:
        for future in [training.forward_backward([datum(target, n)]) for n in range(10)]:
            future.result(10)

    threads = [threading.Thread(target=work, args=(target,)) for target in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bodies = [sent.body for sent in fake.log if isinstance(sent.body, wire.ForwardBackward)]
    targets = [body.data[0].tokens.array().tolist() for body in bodies]
    assert len(kinds(fake)) == 40
    for target in range(4):
        assert [n for first, n in targets if first == target] == list(range(10))


async def test_a_future_can_be_awaited_in_any_loop_and_cancelling_leaves_it(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.held = {1}
    future = training.forward([datum(1)])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(future, 0.05)
    fake.held.clear()
    assert (await future).loss == pytest.approx(0.1)


def test_a_lost_answer_is_asked_for_again_with_the_same_number_and_token(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.trouble = [Trouble("/operations", 503, times=2, after=True)]
    training.forward_backward([datum(1)]).result(5)
    assert kinds(fake) == ["forward_backward"]
    assert fake.asked["POST /v1/sessions/ses_1/operations"] == 3


def test_a_busy_service_is_asked_again(training: my.TrainingClient, fake: FakeService) -> None:
    fake.trouble = [Trouble("/operations", 429), Trouble("/v1/operations/op_1", 502)]
    assert training.optim_step().result(5).step == 1


def test_an_outage_and_its_end_are_said_once(
    training: my.TrainingClient, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.trouble = [Trouble("/operations", 503, times=3)]
    training.optim_step().result(5)
    outage, recovery = caplog.messages
    assert outage.endswith("trouble 503 (HTTP 503); trying again for up to 30 s")
    assert recovery.endswith(" answers again")


def test_a_session_that_is_brought_back_is_said_once(
    training: my.TrainingClient, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    fake.held, fake.restoring = {1, 2}, True
    steps = [training.optim_step(), training.optim_step()]
    eventually(lambda: bool(caplog.messages))
    fake.held.clear()
    steps[1].result(5)
    assert caplog.messages == [
        "session s-1 is being brought back from its log; this takes about as long as it has trained"
    ]


def test_a_refused_submission_leaves_its_number_to_the_next(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.trouble = [Trouble("/operations", 422)]
    with pytest.raises(my.InvalidRequestError, match="trouble 422") as caught:
        training.forward([datum(1)]).result(5)
    assert caught.value.status == 422
    training.forward([datum(2)]).result(5)
    assert kinds(fake) == ["forward"]


def test_a_refused_gradient_stops_the_step_that_would_miss_it(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.trouble = [Trouble("/operations", 403)]
    refused, step = training.forward_backward([datum(1)]), training.optim_step()
    with pytest.raises(my.PermissionDeniedError):
        refused.result(5)
    with pytest.raises(my.IncompleteGradient):
        step.result(5)
    training.optim_step().result(5)
    assert kinds(fake) == ["clear_gradient", "optim_step"]


def test_clearing_the_gradient_makes_a_step_possible_again(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.trouble = [Trouble("/operations", 400)]
    training.forward_backward([datum(1)]).exception(5)
    training.clear_gradient()
    assert training.optim_step().result(5).step == 1


def test_what_is_queued_behind_an_unreachable_service_is_not_sent(
    url: str, fake: FakeService
) -> None:
    away = Trouble("/operations", 504, times=1000)
    with my.ServiceClient(url, KEY, timeout=2) as service:
        training = service.create_lora_training_client(MODEL)
        fake.trouble = [away]
        futures = [training.forward([datum(1)]) for _ in range(3)]
        with pytest.raises(my.ConnectionFailed, match="trouble 504"):
            futures[0].result(20)
        for future in futures[1:]:
            with pytest.raises(my.ConnectionFailed, match="not sent"):
                future.result(5)
        away.times = 0
        training.forward([datum(2)]).result(5)
    assert kinds(fake) == ["forward"]


def test_an_operation_that_may_have_run_is_never_run_twice(
    service: my.ServiceClient, training: my.TrainingClient, fake: FakeService
) -> None:
    fake.trouble = [Trouble("/operations", 500, after=True)]
    with pytest.raises(my.ServerError):
        training.forward_backward([datum(1)]).result(5)
    with pytest.raises(my.OutcomeUnknown, match=r"operation 1 \(forward_backward\)"):
        training.forward_backward([datum(1)]).result(5)
    again = service.get_training_client("ses_1")
    again.optim_step().result(5)
    assert kinds(fake) == ["forward_backward", "optim_step"]


def test_a_failed_operation_says_which_and_why(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.failures = {1: wire.Failure("invalid", "data[0]: token 99 is outside the vocabulary")}
    with pytest.raises(my.OperationFailed, match="outside the vocabulary") as caught:
        training.forward([datum(99)]).result(5)
    assert (caught.value.operation_id, caught.value.kind) == ("op_1", "invalid")


def test_bad_data_is_refused_before_anything_is_sent(
    training: my.TrainingClient, fake: FakeService
) -> None:
    short = my.Datum(my.ModelInput.from_ints([1, 2]), {"target_tokens": [1]})
    with pytest.raises(my.InvalidInput, match=r"data\[1\].*'target_tokens'.* length 1.* 2 tokens"):
        training.forward_backward([datum(1), short])
    with pytest.raises(my.InvalidInput, match="empty"):
        training.forward_backward([])
    assert fake.log == []


def test_a_custom_loss_sends_its_negated_gradient_as_weights(
    training: my.TrainingClient, fake: FakeService
) -> None:
    output = training.forward_backward_custom(
        [datum(1, 2), datum(3)],
        lambda data, logprobs: ((logprobs[0] ** 2).sum(), {"datums": len(data)}),
    ).result(20)
    assert output.loss == pytest.approx(0.05)
    assert output.metrics["datums"] == 2.0
    assert output.metrics["surrogate_loss:sum"] == pytest.approx(0.1)
    body = fake.log[1].body
    assert isinstance(body, wire.ForwardBackward)
    sent = [each.inputs["weights"].array().tolist() for each in body.data]
    assert np.allclose(sent[0], [0.2, 0.4])
    assert sent[1] == [0.0]


def test_calls_made_during_a_custom_loss_wait_behind_both_of_its_passes(
    training: my.TrainingClient, fake: FakeService
) -> None:
    begun, go = threading.Event(), threading.Event()

    def loss(data: object, logprobs: list[object]) -> object:
        begun.set()
        go.wait(5)
        return sum(each.sum() for each in logprobs), {}  # type: ignore[attr-defined]

    custom = training.forward_backward_custom([datum(1)], loss)  # type: ignore[arg-type]
    assert begun.wait(20)
    step = training.optim_step()
    go.set()
    custom.result(5)
    step.result(5)
    assert kinds(fake) == ["forward", "forward_backward", "optim_step"]


def test_a_custom_loss_that_raises_leaves_no_gap_and_no_step(
    training: my.TrainingClient, fake: FakeService
) -> None:
    def loss(data: object, logprobs: object) -> object:
        raise ZeroDivisionError("mine")

    custom = training.forward_backward_custom([datum(1)], loss)  # type: ignore[arg-type]
    step = training.optim_step()
    with pytest.raises(ZeroDivisionError, match="mine"):
        custom.result(20)
    with pytest.raises(my.IncompleteGradient):
        step.result(5)
    assert kinds(fake) == ["forward", "clear_gradient"]


class Own(BaseException):
    pass


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (Own("mine"), Own),
        (asyncio.CancelledError("mine"), RuntimeError),
        (concurrent.futures.CancelledError("mine"), RuntimeError),
        (GeneratorExit("mine"), RuntimeError),
        (KeyboardInterrupt("mine"), RuntimeError),
        (StopIteration("mine"), RuntimeError),
        (SystemExit("mine"), RuntimeError),
    ],
)
def test_whatever_a_custom_loss_raises_ends_its_own_call_alone(
    training: my.TrainingClient, raised: BaseException, seen: type[BaseException]
) -> None:
    def loss(data: object, logprobs: object) -> object:
        raise raised

    custom = training.forward_backward_custom([datum(1)], loss)  # type: ignore[arg-type]
    behind = training.forward([datum(1)])
    with pytest.raises(seen, match="mine") as caught:
        custom.result(20)
    assert raised in (caught.value, caught.value.__cause__)
    assert behind.result(5).loss == pytest.approx(0.1)
    assert training.get_info().id == training.session_id


def test_text_that_is_not_unicode_is_refused_before_anything_is_sent(
    service: my.ServiceClient, training: my.TrainingClient, fake: FakeService
) -> None:
    half = "\ud800"
    with pytest.raises(my.InvalidInput, match=r"metadata\['a'\]"):
        training.save_state(metadata={"a": half})
    with pytest.raises(my.InvalidInput, match="a key of metrics"):
        training.log({half: 1.0})
    with pytest.raises(my.InvalidInput, match="name must be"):
        service.create_lora_training_client(MODEL, name=half)
    sampler = service.create_sampling_client(MODEL)
    for stop, field in ((half, "stop"), (["a", half], r"stop\[1\]")):
        with pytest.raises(my.InvalidInput, match=f"{field} must be Unicode text"):
            sampler.sample(my.ModelInput.from_ints([1]), my.SamplingParams(stop=stop))
    assert fake.log == []


def test_a_custom_loss_cannot_wait_for_its_own_training_client(
    training: my.TrainingClient,
) -> None:
    def loss(data: object, logprobs: object) -> object:
        return training.forward([datum(1)]).result()

    custom = training.forward_backward_custom([datum(1)], loss)  # type: ignore[arg-type]
    with pytest.raises(my.InvalidInput, match="custom loss cannot call"):
        custom.result(20)


def test_saves_name_the_version_they_made(training: my.TrainingClient, fake: FakeService) -> None:
    saved = training.save_state("good", metrics={"loss": 1}, metadata={"run": "a"}).result(5)
    assert (saved.ref, saved.group, saved.version) == ("facts@1", "facts", 1)
    assert training.save_merged(group="other").result(5).ref == "other@2"
    training.save_weights_for_sampler()
    training.load_state("facts@1")
    training.load_state_with_optimizer("facts@1").result(5)
    assert [getattr(sent.body, "kind", None) for sent in fake.log] == [
        "state", "merged", "adapter", None, None,
    ]  # fmt: skip


def test_the_current_weights_can_be_sampled_without_a_version(
    training: my.TrainingClient, fake: FakeService
) -> None:
    sampler = training.save_weights_and_get_sampling_client()
    drawn = sampler.sample(my.ModelInput.from_ints([5]), my.SamplingParams(max_tokens=2), 2)
    assert [each.tokens for each in drawn.result(5).sequences] == [[0, 1], [0, 1]]
    assert (fake.samples[0].weights, fake.samples[0].session) == ("w_1", None)
    assert drawn.result().sequences[0].logprobs == [-0.5, -0.5]


def test_weights_that_could_not_be_saved_fail_the_samples(
    training: my.TrainingClient, fake: FakeService
) -> None:
    fake.failures = {1: wire.Failure("internal", "disk full")}
    sampler = training.save_weights_and_get_sampling_client()
    with pytest.raises(my.OperationFailed, match="disk full"):
        sampler.sample(my.ModelInput.from_ints([5])).result(5)


def test_open_samples_do_not_hold_training_back(
    service: my.ServiceClient, training: my.TrainingClient, fake: FakeService
) -> None:
    fake.sampling.clear()
    sampler = service.create_sampling_client(base_model=MODEL)
    draws = [sampler.sample(my.ModelInput.from_ints([1])) for _ in range(300)]
    assert training.optim_step().result(10).step == 1
    fake.sampling.set()
    assert all(len(draw.result(20).sequences[0].tokens) == 256 for draw in draws)
    assert len({asked.token for asked in fake.samples}) == 300


def test_a_lost_sample_is_asked_for_again_with_the_same_token(
    service: my.ServiceClient, fake: FakeService
) -> None:
    fake.trouble = [Trouble("/v1/samples", 503, after=True)]
    sampler = service.create_sampling_client(version="facts@1")
    scores = sampler.compute_logprobs(my.ModelInput.from_ints([1, 2, 3])).result(5)
    assert scores[0] is None
    assert scores[1:] == pytest.approx([-0.2, -0.3])
    assert len({asked.token for asked in fake.samples}) == 1
    assert fake.samples[0].source == "facts@1"


def test_exactly_one_source_of_samples_must_be_named(service: my.ServiceClient) -> None:
    with pytest.raises(my.InvalidInput, match="exactly one"):
        service.create_sampling_client(base_model=MODEL, version="facts@1")
    with pytest.raises(my.NotFoundError, match="known: org/tiny"):
        service.create_sampling_client(base_model="org/none")


def test_a_session_that_cannot_start_says_why(service: my.ServiceClient) -> None:
    with pytest.raises(my.SessionNotRunning, match="failed: the model does not load"):
        service.create_lora_training_client("org/broken")


def test_resuming_takes_everything_from_the_version(
    service: my.ServiceClient, fake: FakeService
) -> None:
    service.create_training_client_from_state_with_optimizer("facts@1")
    assert fake.created == [
        {
            "base_model": MODEL,
            "from_version": "facts@1",
            "with_optimizer": True,
            "group": "facts",
            "metadata": {},
        }
    ]


def test_stopping_comes_after_what_was_submitted(
    training: my.TrainingClient, fake: FakeService
) -> None:
    futures = [training.forward([datum(n)]) for n in range(5)]
    assert training.stop().status == "stopped"
    assert all(future.result(5) for future in futures)
    assert len(kinds(fake)) == 5


def test_logged_numbers_stand_beside_the_last_step(training: my.TrainingClient) -> None:
    training.optim_step().result(5)
    training.log({"reward": 0.5}).result(5)
    training.log({"reward": 0.7}, step=9).result(5)
    assert [(each.step, each.metrics) for each in training.metrics()] == [
        (1, {"reward": 0.5}),
        (9, {"reward": 0.7}),
    ]


def test_the_registry_is_read_page_by_page(service: my.ServiceClient) -> None:
    assert [found.ref for found in service.list_versions(kind="state")] == ["facts@2", "facts@1"]
    assert service.get_version("facts@4").version == 4
    assert [found.name for found in service.list_base_models()] == [MODEL]
    assert service.usage().tokens["train"] == 7
    assert service.merge("facts@1").result(5).ref == "facts@3"


def test_a_promotion_ends_with_the_traffic_or_an_error(service: my.ServiceClient) -> None:
    assert service.promote("facts@3", "chat").result(5).version == "facts@3"
    with pytest.raises(my.DeploymentFailed, match="'chat': facts@9: out of memory"):
        service.promote("facts@9", "chat").result(5)


def test_the_tokenizer_comes_from_the_service_once(
    training: my.TrainingClient, service: my.ServiceClient, fake: FakeService, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, url: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("MODELYARD_CACHE", str(tmp_path))
    with my.ServiceClient(url, KEY) as own:
        for _ in range(2):
            tokenizer = own.create_sampling_client(base_model=MODEL).get_tokenizer()
            assert tokenizer.encode("hello world") == [0, 1]
    assert fake.asked[f"GET /v1/models/{MODEL}/tokenizer/tokenizer.json"] == 1
    assert [path.name for path in (tmp_path / "tokenizers").iterdir()] == ["sha256-abc"]


def test_a_wrong_key_is_an_authentication_error(url: str) -> None:
    with (
        my.ServiceClient(url, "wrong") as service,
        pytest.raises(my.AuthenticationError, match="unknown token"),
    ):
        service.list_base_models()


def test_no_service_is_an_error_that_names_the_url() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            my.ServiceClient(url, KEY, timeout=0.3) as service,
            pytest.raises(my.ConnectionFailed, match=url),
        ):
            service.list_base_models()
