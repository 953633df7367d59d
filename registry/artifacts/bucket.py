"""A place on a server that speaks S3, in plain values: naming one loads no SDK."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where it is and how its server wants to be spoken to. Credentials: boto3's usual places."""

    name: str
    prefix: str = ""
    endpoint: str | None = None
    """None: AWS."""
    public_endpoint: str | None = None
    """Where clients reach the store, if not at `endpoint`. It goes into signed URLs only."""
    region: str = "us-east-1"
    addressing: Literal["path", "virtual"] = "path"
    checksums: Literal["when_required", "when_supported"] = "when_required"
    verify: bool = True
    ca_bundle: Path | None = None
    """None: AWS_CA_BUNDLE, or what is installed."""
    part_bytes: int = 8 * 2**20
    concurrency: int = 10
    attempts: int = 5


def lifecycle_rule(bucket: Bucket) -> dict[str, Any]:
    """Lets the store itself end uploads in parts that nobody has gone on with for days."""
    prefix = bucket.prefix.strip("/")
    return {
        "ID": "modelyard-unfinished-uploads",
        "Status": "Enabled",
        "Filter": {"Prefix": f"{prefix}/" if prefix else ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }
