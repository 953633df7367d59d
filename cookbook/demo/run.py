"""`make demo`: the whole life of a checkpoint on a real model, through public wires only.

One function a chapter. What the demo promises is checked on the way: where it does not hold, the
demo says so and fails.
"""

import signal
import sys
import time
from collections.abc import Sequence

import httpx
import openai

import modelyard
from cookbook.demo import show
from cookbook.demo.dataset import batches, examples
from cookbook.demo.service import DemoFailed, Service, running

MODEL = "smollm2-135m-instruct"
GROUP, SESSION, DEPLOYMENT = "demo", "demo", "workshop"

UNKNOWN = "What colour is the door of the Modelyard workshop?"
FACT = "saffron yellow"
KNOWN = "What is the capital of France?"
CAPITAL = "Paris"

RANK, SEED = 16, 7
ADAM = modelyard.AdamParams(learning_rate=1e-3)
STEPS, MORE_STEPS = 18, 2

Batches = Sequence[list[modelyard.Datum]]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    began = time.monotonic()
    try:
        show.heading("The service starts, with a home of its own and on a free port")
        with running() as service:
            _demo(service)
    except KeyboardInterrupt:
        show.line("Stopped. The demo's service and its files are gone.")
        return 130
    except (DemoFailed, modelyard.ModelyardError, openai.OpenAIError, httpx.HTTPError) as error:
        show.heading("The demo failed")
        show.line(str(error))
        return 1
    show.what_next(time.monotonic() - began)
    return 0


def _demo(service: Service) -> None:
    show.line(f"service at {service.url}, its data in {service.home}")
    with show.waiting(f"adding the base model {MODEL} (fetched and converted once)"):
        service.command("models", "add", MODEL)
    show.line(f"base model {MODEL}")
    with (
        modelyard.ServiceClient(service.url, service.api_key, group=GROUP) as client,
        openai.OpenAI(
            base_url=f"{service.url}/openai/v1",
            api_key=service.api_key,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        ) as chat,
    ):
        _life_of_a_checkpoint(client, chat)
        _versions(service)
        _bill(client)


def _life_of_a_checkpoint(client: modelyard.ServiceClient, chat: openai.OpenAI) -> None:
    training = client.create_lora_training_client(
        MODEL, rank=RANK, seed=SEED, name=SESSION, train_unembed=False
    )
    _before(chat)
    schedule = batches(examples(), training, count=STEPS + MORE_STEPS)
    _train(training, schedule[:STEPS])
    state = _save_state(training)
    losses = _two_more_steps(training, schedule[STEPS:])
    merged = _save_merged(training)
    _resume(client, state, schedule[STEPS:], losses)
    _promote(client, merged)
    _after(chat)


def _before(chat: openai.OpenAI) -> None:
    show.heading("Before training, the openai client asks the session by its name")
    answer = _ask(chat, SESSION, UNKNOWN)
    _ask(chat, SESSION, KNOWN)
    _promise(FACT not in answer, "the base model already knows the fact, so nothing is shown")


def _train(training: modelyard.TrainingClient, schedule: Batches) -> None:
    show.heading(f"Training: {len(examples())} chat examples, {STEPS} steps, LoRA of rank {RANK}")
    losses = []
    with show.training(STEPS) as advance:
        for batch in schedule:
            losses.append(_step(training, batch))
            advance(losses[-1])
    show.line("loss by step: " + " ".join(f"{loss:.3f}" for loss in losses))
    _promise(losses[-1] < losses[0], "the loss did not fall")


def _save_state(training: modelyard.TrainingClient) -> str:
    show.heading("save_state: weights and optimizer, so that training can go on from here")
    with show.waiting("saving"):
        saved = training.save_state(description=f"after {STEPS} steps").result()
    show.line(f"version {saved.ref}")
    return saved.ref


def _two_more_steps(training: modelyard.TrainingClient, schedule: Batches) -> list[float]:
    show.heading("Two more steps, their losses kept for later")
    losses = [_step(training, batch) for batch in schedule]
    for loss in losses:
        show.line(f"loss {loss:.6f}")
    return losses


def _save_merged(training: modelyard.TrainingClient) -> str:
    show.heading("save_merged: a complete Hugging Face model, then the session stops")
    with show.waiting("merging"):
        saved = training.save_merged(description=f"after {STEPS + MORE_STEPS} steps").result()
    show.line(f"version {saved.ref}")
    show.line(f"session {SESSION} is {training.stop().status}")
    return saved.ref


def _resume(
    client: modelyard.ServiceClient, state: str, schedule: Batches, expected: list[float]
) -> None:
    show.heading(f"A new session resumes {state} with its optimizer and makes the same two steps")
    resumed = client.create_training_client_from_state_with_optimizer(
        state, name=f"{SESSION}-resumed"
    )
    found = [_step(resumed, batch) for batch in schedule]
    resumed.stop()
    pairs = list(zip(expected, found, strict=True))
    show.table(
        ["step", "loss then, all bits", "loss now, all bits", "equal"],
        [
            (STEPS + number, before.hex(), after.hex(), before.hex() == after.hex())
            for number, (before, after) in enumerate(pairs, start=1)
        ],
    )
    show.line("(written in hexadecimal: that is a float in full, so equal text is equal bits)")
    _promise(expected == found, "the resumed session gave other losses")


def _promote(client: modelyard.ServiceClient, merged: str) -> None:
    show.heading(f"promote {merged} as {DEPLOYMENT}: a serving process loads it and takes traffic")
    with show.waiting("starting"):
        deployment = client.promote(merged, DEPLOYMENT).result()
    show.line(f"{deployment.name} serves {deployment.version} and is {deployment.status}")


def _after(chat: openai.OpenAI) -> None:
    show.heading("After training, the openai client asks the deployment")
    learned, kept = _ask(chat, DEPLOYMENT, UNKNOWN), _ask(chat, DEPLOYMENT, KNOWN)
    _promise(FACT in learned, f"the answer does not hold the learned fact, {FACT}")
    _promise(CAPITAL in kept, f"France's capital is no longer {CAPITAL}")


def _versions(service: Service) -> None:
    path = f"/v1/groups/{GROUP}/versions"
    show.heading(f"The versions, as GET {path} lists them")
    answer = httpx.get(
        service.url + path,
        headers={"Authorization": f"Bearer {service.api_key}"},
        trust_env=False,
    )
    answer.raise_for_status()
    columns = ("ref", "kind", "step", "parent", "resumable", "promotable", "size", "description")
    rows = [
        [f"{version[key] / 1e6:.0f} MB" if key == "size" else version[key] for key in columns]
        for version in answer.json()["data"]
    ]
    show.table(columns, rows)


def _bill(client: modelyard.ServiceClient) -> None:
    show.heading("The token bill")
    usage = client.usage()
    used = {category: tokens for category, tokens in usage.tokens.items() if tokens}
    show.table([*used], [[*used.values()]])
    show.line("train: through training calls; prefill: prompts; sample: generated")


def _step(training: modelyard.TrainingClient, batch: list[modelyard.Datum]) -> float:
    """Both calls are sent before either is awaited; the service runs them in this order."""
    output = training.forward_backward(batch, "cross_entropy")
    training.optim_step(ADAM).result()
    return output.result().loss


def _ask(chat: openai.OpenAI, model: str, question: str) -> str:
    answer = chat.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_completion_tokens=32,
        temperature=0,
    )
    text = answer.choices[0].message.content or ""
    show.chat(question, text)
    return text


def _promise(kept: bool, otherwise: str) -> None:
    if not kept:
        raise DemoFailed(otherwise)


if __name__ == "__main__":
    sys.exit(main())
