"""`python -m benchmarks.bare.handler URL PORT`: a route that inserts one row and reads it back."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from sqlalchemy import LargeBinary, event, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "bare_items"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    body: Mapped[bytes] = mapped_column(LargeBinary)


def create_app(url: str) -> FastAPI:
    drivers = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}
    scheme, _, rest = url.partition("://")
    engine = create_async_engine(f"{drivers[scheme]}://{rest}")
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    if scheme == "sqlite":

        @event.listens_for(engine.sync_engine, "connect")
        def configure(connection: object, _: object) -> None:
            cursor = connection.cursor()  # type: ignore[attr-defined]  # a driver's own type
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.close()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/rows")
    async def add() -> dict[str, int | str]:
        async with sessions.begin() as db:
            item = Item(name="one", body=b"x" * 100)
            db.add(item)
        async with sessions() as db:
            found = (await db.scalars(select(Item).where(Item.id == item.id))).one()
        return {"id": found.id, "name": found.name}

    return app


if __name__ == "__main__":
    uvicorn.run(
        create_app(sys.argv[1]), port=int(sys.argv[2]), log_level="warning", access_log=False
    )
