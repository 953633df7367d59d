"""infra/compose.yaml, as far as it can be tried without a container engine: its settings work."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from registry.settings import Settings
from session.cli.root import app
from support.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from support.service import modelyard, serving
from support.settings_table import variables

INFRA = Path(__file__).parents[2] / "infra"
COMPOSE: dict[str, Any] = yaml.safe_load((INFRA / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = SERVICES["modelyard"]
_VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")


def test_every_variable_is_a_setting_or_of_aws() -> None:
    known = {name for name, _ in variables(Settings)}
    known |= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert set(OURS["environment"]) <= known


def test_what_it_runs_is_a_command() -> None:
    assert OURS["command"][0] in typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_what_a_service_waits_for_and_where_it_writes_is_defined() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        sources = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        named = {source for source in sources if re.fullmatch(r"\w+", source)}
        assert named <= set(COMPOSE["volumes"])
    for name, wanted in OURS["depends_on"].items():
        if wanted["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[name]


def test_every_image_has_a_tag() -> None:
    images = [service["image"] for service in SERVICES.values() if "image" in service]
    assert images
    assert all(re.fullmatch(r"[\w/.]+:(?!latest)[\w.-]+", image) for image in images)


def test_the_image_is_made_of_files_that_are_there() -> None:
    text = (INFRA / "Dockerfile").read_text()
    assert (INFRA / OURS["build"]["context"] / OURS["build"]["dockerfile"]).is_file()
    assert "-c constraints.txt" in text
    assert 'ENTRYPOINT ["modelyard"]' in text


def test_the_service_runs_with_these_settings_and_its_health_is_seen(
    minio: S3Server, postgres_url: str, tmp_path: Path
) -> None:
    bucket, home = minio.fresh_bucket(), tmp_path / "home"
    given = {"POSTGRES_PASSWORD": "secret", "MINIO_ROOT_USER": ACCESS_KEY}
    given |= {"MINIO_ROOT_PASSWORD": SECRET_KEY}
    settings = {
        name: _VARIABLE.sub(lambda found: given.get(found[1], found[2] or ""), value)
        for name, value in OURS["environment"].items()
    }
    address = "postgresql://modelyard:secret@postgres:5432/modelyard"
    assert settings["MODELYARD_DATABASE__URL"] == address
    here = {
        "MODELYARD_DATABASE__URL": postgres_url,
        "MODELYARD_OBJECTS__ENDPOINT": minio.endpoint,
        "MODELYARD_OBJECTS__PUBLIC_ENDPOINT": minio.endpoint,
        "MODELYARD_OBJECTS__BUCKET": bucket.name,
        "MODELYARD_HOST": "127.0.0.1",
    }
    assert set(here) <= set(settings)
    settings |= here
    with serving(home, settings=settings) as service:
        done = modelyard(home, "doctor", settings=settings)
        assert done.returncode == 0, done.stdout
        _, program, option, code = OURS["healthcheck"]["test"]
        assert (program, option) == ("python", "-c")
        asked = code.replace("http://127.0.0.1:8642", service.url)
        assert asked != code
        subprocess.run([sys.executable, "-c", asked], check=True, timeout=30)
