"""A base model is a directory known by name and pinned by digest, shared by every account."""

from datetime import datetime
from typing import TypedDict

from sqlalchemy import JSON
from sqlalchemy.orm import Mapped, mapped_column

from registry.kit.clock import now
from registry.kit.db import Base, UtcDateTime


class ModelFile(TypedDict):
    path: str
    size: int
    sha256: str


class BaseModel(Base):
    __tablename__ = "base_models"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    path: Mapped[str]
    digest: Mapped[str]
    architecture: Mapped[str]
    context_length: Mapped[int]
    vocab_size: Mapped[int]
    end_ids: Mapped[list[int]] = mapped_column(JSON)
    files: Mapped[list[ModelFile]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
