"""The registry's routers, joined. Deployments have one of their own."""

from fastapi import APIRouter

from registry.api import (
    deletion,
    differences,
    history,
    metrics,
    models,
    packages,
    proofs,
    retention,
    uploads,
    usage,
    webhooks,
)

router = APIRouter()
router.include_router(models.router)
router.include_router(packages.router)
router.include_router(differences.router)
router.include_router(metrics.router)
router.include_router(proofs.router)
router.include_router(history.router)
router.include_router(uploads.router)
router.include_router(deletion.router)
router.include_router(retention.router)
router.include_router(usage.router)
router.include_router(webhooks.router)
