"""Queries on base models, which belong to the installation and to no account."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from registry.models.model import BaseModel


class ModelRepository:
    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    def add(self, model: BaseModel) -> None:
        self._db.add(model)

    async def all(self) -> Sequence[BaseModel]:
        return (await self._db.scalars(select(BaseModel).order_by(BaseModel.name))).all()

    async def by_name(self, name: str) -> BaseModel | None:
        found = await self._db.scalars(select(BaseModel).where(BaseModel.name == name))
        return found.one_or_none()
