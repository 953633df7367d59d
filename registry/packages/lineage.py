"""Where a version came from, and what came of it: a graph over all groups of the account."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.packages import service
from registry.packages.model import Package
from registry.packages.ref import Ref
from registry.packages.repository import PackageRepository

MOST_NODES = 1000


@dataclass(frozen=True, slots=True)
class Lineage:
    """Nearer relatives come first. `is_cut` where there are more of them than are told."""

    root: Package
    ancestors: Sequence[Package]
    descendants: Sequence[Package]
    is_cut: bool

    @property
    def nodes(self) -> Sequence[Package]:
        """The oldest ancestor first, the youngest descendant last."""
        return [*reversed(self.ancestors), self.root, *self.descendants]


async def lineage(db: AsyncSession, actor: Actor, ref: Ref) -> Lineage:
    root = await service.require_version(db, actor, ref)
    packages = PackageRepository(db, actor.account_id)
    ancestors = await packages.ancestors(root.id, limit=MOST_NODES + 1)
    descendants = await packages.descendants(root.id, limit=MOST_NODES + 1)
    return Lineage(
        root,
        ancestors[:MOST_NODES],
        descendants[:MOST_NODES],
        is_cut=max(len(ancestors), len(descendants)) > MOST_NODES,
    )
