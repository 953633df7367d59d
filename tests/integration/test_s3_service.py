"""The whole service on a bucket: nothing of a version lies on the machine that made it."""

import shutil
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from registry.artifacts.s3_client import make_client
from support.s3 import S3Server
from support.service import modelyard, serving
from support.training import ask, batch, chat_client, connect, get, prompt, step


@pytest.fixture(params=["minio", "versitygw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


def test_a_service_trains_saves_resumes_and_promotes_on_a_bucket(
    server: S3Server, tiny: Path, tmp_path: Path
) -> None:
    bucket = server.fresh_bucket(prefix="team")
    home = tmp_path / "home"
    settings = {
        "MODELYARD_OBJECTS__ENDPOINT": server.endpoint,
        "MODELYARD_OBJECTS__BUCKET": bucket.name,
        "MODELYARD_OBJECTS__PREFIX": bucket.prefix,
    }
    with serving(home, settings=settings) as service:
        added = modelyard(home, "models", "add", "tiny", str(tiny), settings=settings)
        assert added.returncode == 0, added.stderr
        with connect(service, "g1") as client:
            training = client.create_lora_training_client("tiny", rank=4, name="mine")
            step(training, batch(1))
            saved = training.save_state().result().ref
            assert saved == "g1@1"
            after = step(training, batch(2))
            service.kill_worker()
            shutil.rmtree(home / "cache", ignore_errors=True)
            sampler = training.save_weights_and_get_sampling_client()
            assert sampler.sample(prompt([5, 6])).result().sequences[0].tokens
            resumed = client.create_training_client_from_state_with_optimizer(saved)
            assert np.isclose(step(resumed, batch(2)), after)
            assert client.merge(saved).result().kind == "merged"
        promoted = modelyard(home, "promote", "g1", "2", "--as", "tiny-live", settings=settings)
        assert promoted.returncode == 0, promoted.stderr
        with chat_client(service) as chat:
            assert isinstance(ask(chat, "tiny-live"), str)
        fetched = modelyard(home, "pull", "g1@1", str(tmp_path / "out"), settings=settings)
        assert fetched.returncode == 0, fetched.stderr
        assert len(get(service, "/v1/groups/g1/versions")["data"]) == 2
        assert service.stop(signal.SIGTERM) == 0
    assert not (home / "objects").exists()
    with closing(make_client(bucket)) as s3:
        listed = s3.list_objects_v2(Bucket=bucket.name)["Contents"]
    assert all(each["Key"].startswith("team/") for each in listed)
