"""A reinforcement-learning loop as a user writes it: sample, reward here, step, again."""

import numpy as np
import pytest

import modelyard
from support.service import Service
from support.training import eventually, prompt

PROMPT = [5, 17, 200]
WANTED = range(100)  # about a quarter of the vocabulary
LENGTH, SAMPLES, STEPS = 8, 24, 12
ADAM = modelyard.AdamParams(learning_rate=1e-2)
CONFIG = {"dro": {"beta": 0.1}}


def reward(sample: modelyard.SampledSequence) -> float:
    return sum(token in WANTED for token in sample.tokens) / LENGTH


def experience(sample: modelyard.SampledSequence, advantage: float) -> modelyard.Datum:
    """The prompt's own positions have no advantage, so they add nothing."""
    tokens, silent = PROMPT + sample.tokens, [0.0] * (len(PROMPT) - 1)
    return modelyard.Datum(
        prompt(tokens[:-1]),
        {
            "target_tokens": tokens[1:],
            "logprobs": silent + sample.logprobs,
            "advantages": silent + [advantage] * len(sample.tokens),
        },
    )


def learn(training: modelyard.TrainingClient, loss: str) -> list[float]:
    """The mean reward before each step."""
    means = []
    for number in range(STEPS):
        sampler = training.save_weights_and_get_sampling_client()
        params = modelyard.SamplingParams(max_tokens=LENGTH, seed=number, stop=[])
        samples = sampler.sample(prompt(PROMPT), params, SAMPLES).result().sequences
        rewards = [reward(sample) for sample in samples]
        means.append(float(np.mean(rewards)))
        data = [experience(s, r - means[-1]) for s, r in zip(samples, rewards, strict=True)]
        learned = training.forward_backward(data, loss, CONFIG.get(loss))
        training.optim_step(ADAM)
        training.log({"reward": means[-1]}, step=number + 1).result()
        learned.result()  # says what a refused batch was refused for
    return means


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro"])
def test_the_reward_rises_and_leaves_no_versions(
    client: modelyard.ServiceClient, training: modelyard.TrainingClient, loss: str
) -> None:
    means = learn(training, loss)
    assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.3, means
    logged = [step.metrics["reward"] for step in training.metrics() if step.step]
    assert len(logged) == STEPS
    assert logged[-1] == means[-1]
    assert client.list_versions() == []


def test_sampler_weights_live_as_long_as_their_session(
    service: Service, training: modelyard.TrainingClient
) -> None:
    samplers = [training.save_weights_and_get_sampling_client() for _ in range(3)]
    for sampler in samplers:
        sampler.compute_logprobs(prompt(PROMPT)).result()
    folder = f"*/sessions/{training.session_id}/weights/*"
    assert len(list((service.home / "objects").glob(folder))) == 3
    training.stop()
    for sampler in samplers:
        with pytest.raises(modelyard.NotFoundError):
            sampler.sample(prompt(PROMPT)).result()
    eventually(lambda: not list((service.home / "objects").glob(folder)))
