"""Base models, and their tokenizers for clients without a model hub."""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from registry.api.auth import Viewer
from registry.api.downloads import BYTES, content_headers, not_modified
from registry.api.schemas import List, Model, TokenizerFiles
from registry.kit.rest import ReadDb
from registry.models import service

router = APIRouter(prefix="/v1/models", tags=["base models"])


@router.get("")
async def list_models(actor: Viewer, db: ReadDb) -> List[Model]:
    return List(data=[Model.of(model) for model in await service.base_models(db)])


@router.get("/{name:path}/tokenizer")
async def list_tokenizer_files(actor: Viewer, db: ReadDb, name: str) -> TokenizerFiles:
    model = await service.require_base_model(db, name)
    return TokenizerFiles(files=[file["path"] for file in service.tokenizer_files(model)])


@router.get("/{name:path}/tokenizer/{file:path}", response_class=Response, responses=BYTES)
async def download_tokenizer_file(
    actor: Viewer, db: ReadDb, request: Request, name: str, file: str
) -> Response:
    model = await service.require_base_model(db, name)
    known = service.require_tokenizer_file(model, file)
    data = await asyncio.to_thread(service.read_file, model, known)
    return not_modified(request, known["sha256"]) or Response(
        data, headers=content_headers(file, known["sha256"])
    )


@router.get("/{name:path}")
async def show_model(actor: Viewer, db: ReadDb, name: str) -> Model:
    return Model.of(await service.require_base_model(db, name))
