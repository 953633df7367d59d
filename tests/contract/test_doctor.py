"""`modelyard doctor`: what it finds at real stores, and at stores that are wrong in one way."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from registry.artifacts.bucket import Bucket
from registry.artifacts.doctor import Finding, Verdict, examine_bucket
from registry.artifacts.s3_client import make_client
from session.cli.root import main
from support.faulty import Proxied, proxy, refuse_chunked, self_signed
from support.s3 import S3Server

Doctor = Callable[..., tuple[int, str]]


@pytest.fixture(params=["minio", "versitygw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Doctor:
    """The command's exit code and what it printed, under the given settings."""

    def run(*words: str, **settings: str) -> tuple[int, str]:
        monkeypatch.setenv("MODELYARD_HOME", str(tmp_path / "home"))
        for name, value in settings.items():
            monkeypatch.setenv(f"MODELYARD_{name}", value)
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *words])
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


def examined(bucket: Bucket) -> tuple[dict[str, Finding], Bucket]:
    found, works = examine_bucket(bucket)
    return {each.check.removeprefix("objects: "): each for each in found}, works


def left_over(bucket: Bucket) -> object:
    client = make_client(bucket)
    try:
        return client.list_objects_v2(Bucket=bucket.name).get("Contents", [])
    finally:
        client.close()


def test_a_good_store_is_good_in_every_way(server: S3Server, doctor: Doctor) -> None:
    bucket = server.fresh_bucket()
    settings = {"OBJECTS__ENDPOINT": server.endpoint, "OBJECTS__BUCKET": bucket.name}
    code, out = doctor("--json", **settings)
    report = json.loads(out)
    assert (code, report["ok"]) == (0, True)
    verdicts = {each["check"]: each["verdict"] for each in report["checks"]}
    lacking = {check for check, verdict in verdicts.items() if verdict != "works"}
    assert lacking <= {"objects: certificate", "objects: list multipart"}
    assert len(verdicts) == 17
    assert report["settings"]["MODELYARD_OBJECTS__ADDRESSING"] == "path"
    assert left_over(bucket) == []


def test_the_directory_is_tried_where_no_bucket_is_set(doctor: Doctor, tmp_path: Path) -> None:
    code, out = doctor()
    assert code == 0
    assert "objects: put, get, delete" in out
    assert "MODELYARD_OBJECTS" not in out
    shutil.rmtree(tmp_path / "home" / "objects")
    (tmp_path / "home" / "objects").write_text("in the way")
    code, out = doctor("--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


def test_a_missing_bucket_is_said_once(server: S3Server, doctor: Doctor) -> None:
    settings = {"OBJECTS__ENDPOINT": server.endpoint, "OBJECTS__BUCKET": "absent"}
    code, out = doctor(**settings)
    assert code == 1
    assert out.count("NoSuchBucket") == 1
    assert "MODELYARD_OBJECTS__BUCKET" not in out


def test_a_database_that_is_away_is_said(doctor: Doctor) -> None:
    code, out = doctor(DATABASE__URL="postgresql://nobody@127.0.0.1:9/none")
    assert code == 1
    assert "database: reach" in out


def test_a_server_that_is_away_ends_the_examination(minio: S3Server) -> None:
    found, _ = examined(replace(minio.fresh_bucket(), endpoint="http://127.0.0.1:9"))
    assert [each.verdict for each in found.values()] == [Verdict.fails]


def test_a_private_authority_is_named_and_then_trusted(
    minio: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, context = self_signed(tmp_path)
    with proxy(minio.endpoint, lambda request: False, tls=context) as url:
        bucket = replace(minio.fresh_bucket(), endpoint=url)
        found, _ = examined(bucket)
        assert "MODELYARD_OBJECTS__CA_BUNDLE" in found[f"reach {url}"].detail
        found, _ = examined(replace(bucket, ca_bundle=certificate))
        assert found["certificate"].verdict is Verdict.works
        assert all(each.verdict is not Verdict.fails for each in found.values())
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        found, _ = examined(bucket)
        assert str(certificate) in found["certificate"].detail


def test_the_checksum_mode_that_works_is_found(minio: S3Server, tmp_path: Path) -> None:
    certificate, context = self_signed(tmp_path)
    with proxy(minio.endpoint, refuse_chunked, tls=context) as url:
        bucket = minio.fresh_bucket(ca_bundle=certificate, checksums="when_supported")
        found, works = examined(replace(bucket, endpoint=url))
    assert found["checksums"].verdict is Verdict.lacks
    assert works.checksums == "when_required"
    assert found["multipart"].verdict is Verdict.works


def test_the_region_that_works_is_found(versitygw: S3Server) -> None:
    found, works = examined(versitygw.fresh_bucket(region="eu-west-9"))
    assert found["region"].verdict is Verdict.lacks
    assert works.region == "us-east-1"
    assert found["signed URL"].verdict is Verdict.works


def test_unfinished_uploads_are_named_and_the_rule_that_ends_them(
    versitygw: S3Server, doctor: Doctor
) -> None:
    bucket = versitygw.fresh_bucket()
    client = make_client(bucket)
    for key in ("team/facts/a", "others/b"):
        client.create_multipart_upload(Bucket=bucket.name, Key=key)
    client.close()
    settings = {"ENDPOINT": versitygw.endpoint, "BUCKET": bucket.name, "PREFIX": "team"}
    code, out = doctor("--json", **{f"OBJECTS__{name}": each for name, each in settings.items()})
    report = json.loads(out)
    (found,) = [each for each in report["checks"] if each["check"] == "objects: list multipart"]
    assert found["detail"].startswith("1 unfinished, see modelyard gc: team/facts/a (")
    rule = report["lifecycle_rule"]
    assert rule["Filter"] == {"Prefix": "team/"}
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert code == 0


def test_a_clock_that_is_off_is_said(minio: S3Server) -> None:
    def yesterday(request: Proxied) -> bool:
        answer = request.passed_on()
        answer.headers["date"] = "Sun, 01 Jan 2023 00:00:00 GMT"
        request.answer(answer)
        return True

    with proxy(minio.endpoint, yesterday) as url:
        found, _ = examined(replace(minio.fresh_bucket(), endpoint=url))
    assert found["clock"].verdict is Verdict.fails
    assert "set the clocks" in found["clock"].detail


def test_what_a_store_lacks_is_no_failure(minio: S3Server) -> None:
    """It ignores conditions and checksums, and its public address leads nowhere from here."""

    def ignore(request: Proxied) -> bool:
        if {"if-none-match", "x-amz-checksum-sha256"} & {k.lower() for k in request.headers}:
            request.answer(httpx.Response(200, headers={"etag": '"x"'}))
            return True
        return False

    with proxy(minio.endpoint, ignore) as url:
        bucket = replace(minio.fresh_bucket(), endpoint=url)
        found, _ = examined(replace(bucket, public_endpoint="http://127.0.0.1:9"))
    lacking = {name for name, each in found.items() if each.verdict is Verdict.lacks}
    assert lacking >= {"conditional put", "wrong checksum", "signed URL"}
    assert all(each.verdict is not Verdict.fails for each in found.values())
