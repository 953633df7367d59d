"""What the outside hears of a deployment, written in the transaction of the move."""

from sqlalchemy.ext.asyncio import AsyncSession

from registry.deployments.model import Deployment, DeploymentRevision
from registry.events import service as events
from registry.events.model import EventType


def tell(
    db: AsyncSession,
    deployment: Deployment,
    kind: EventType,
    *,
    to: DeploymentRevision | None,
    source: str | None = None,
    why: str = "",
) -> None:
    about = {
        "deployment": deployment.name,
        "from": source,
        "to": to.ref if to else None,
        "digest": to.digest if to else None,
        "why": why,
    }
    events.emit(db, deployment.account_id, kind, about)
