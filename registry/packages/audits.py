"""Whether the bytes of a version still are those that were registered."""

from collections.abc import Sequence
from dataclasses import dataclass

from registry.artifacts.audit import Finding, audit
from registry.artifacts.manifest import FileEntry, manifest_digest
from registry.artifacts.store import BlobStore
from registry.packages.model import Package


@dataclass(frozen=True, slots=True)
class Audit:
    package: Package
    findings: Sequence[Finding]
    has_its_manifest: bool

    @property
    def is_intact(self) -> bool:
        return self.has_its_manifest and not any(each.problem for each in self.findings)


async def verify(store: BlobStore, package: Package, files: Sequence[FileEntry]) -> Audit:
    """Slow, and so outside any transaction: every byte is read."""
    whole = manifest_digest(files) == package.digest
    return Audit(package, await audit(store, package.prefix, files), whole)
