"""A service that keeps its log in memory and computes nothing: enough to hold a client to.

The log-probability of a target is minus a tenth of its id.
"""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from session import wire

KEY = "my-key"
MODEL = "org/tiny"
VERSION = {
    "ref": "facts@1",
    "group": "facts",
    "version": 1,
    "kind": "state",
    "base_model": MODEL,
    "created_at": "2026-01-02T03:04:05Z",
    "added_later": 1,
}


@dataclass
class Trouble:
    """Answer the next `times` requests whose path ends so with `status`; `after` doing the work."""

    path: str
    status: int
    times: int = 1
    after: bool = False


@dataclass
class FakeService:
    log: list[wire.Submission] = field(default_factory=list)
    trouble: list[Trouble] = field(default_factory=list)
    failures: dict[int, wire.Failure] = field(default_factory=dict)  # by operation number
    pruned: set[int] = field(default_factory=set)  # completed, and the result is gone
    held: set[int] = field(default_factory=set)  # numbers whose outcome is not yet known
    session: dict[str, Any] = field(default_factory=dict)
    created: list[dict[str, Any]] = field(default_factory=list)
    samples: list[wire.Sampling] = field(default_factory=list)
    sampling: threading.Event = field(default_factory=threading.Event)
    restoring: bool = False
    metrics: list[dict[str, Any]] = field(default_factory=list)
    deployment: dict[str, Any] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.sampling.set()

    def app(self) -> FastAPI:
        app = FastAPI()
        app.middleware("http")(self._gate)
        sessions = "/v1/sessions"
        app.post(sessions, status_code=201)(self._create)
        app.get(f"{sessions}/{{session}}")(self._session)
        app.post(f"{sessions}/{{session}}/stop")(self._stop)
        app.post(f"{sessions}/{{session}}/heartbeat")(self._beat)
        app.delete(f"{sessions}/{{session}}", status_code=204)(self._delete)
        app.post(f"{sessions}/{{session}}/operations")(self._submit)
        app.get(f"{sessions}/{{session}}/metrics")(self._read_metrics)
        app.post(f"{sessions}/{{session}}/metrics")(self._add_metrics)
        app.get("/v1/operations/{operation}")(self._outcome)
        app.post("/v1/samples")(self._sample)
        app.get("/v1/models")(self._models)
        app.get("/v1/models/{name:path}/tokenizer/{file}")(self._tokenizer_file)
        app.get("/v1/models/{name:path}/tokenizer")(self._tokenizer)
        app.get("/v1/models/{name:path}")(self._model)
        app.get("/v1/groups/{group}/versions")(self._versions)
        app.get("/v1/groups/{group}/versions/{version}")(self._version)
        app.post("/v1/groups/{group}/versions/{version}/merge")(self._merge)
        app.get("/v1/merges/{merge}")(self._merged)
        app.get("/v1/deployments/{name}")(self._deployment)
        app.post("/v1/deployments/{name}/promote")(self._promote)
        app.get("/v1/usage/totals")(self._usage)
        return app

    async def _gate(self, request: Request, call_next: Any) -> Any:
        path = request.url.path
        self.asked[f"{request.method} {path}"] += 1
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return _problem(401, "unauthenticated", "unknown token")
        for trouble in self.trouble:
            if trouble.times and path.endswith(trouble.path):
                trouble.times -= 1
                if trouble.after:
                    await call_next(request)
                return _problem(trouble.status, "made up", f"trouble {trouble.status}")
        return await call_next(request)

    async def _create(self, request: Request) -> Any:
        body = await request.json()
        self.created.append(body)
        self.session = {
            "id": "ses_1",
            "name": body.get("name") or "s-1",
            "status": "created",
            "base_model": body["base_model"],
            "group": body.get("group"),
            "lora": body.get("lora", {}),
            "error": None,
            "created_at": "2026-01-02T03:04:05Z",
        }
        return self._info()

    async def _session(self, session: str) -> Any:
        if session not in (self.session.get("id"), self.session.get("name")):
            return _problem(404, "not_found", f"no session {session!r}")
        moves = {"created": "running", "stopping": "stopped"}
        self.session["status"] = moves.get(self.session["status"], self.session["status"])
        if self.session["base_model"] == "org/broken":
            self.session |= {"status": "failed", "error": "the model does not load"}
        return self._info()

    async def _stop(self) -> Any:
        self.session["status"] = "stopping"
        return self._info()

    async def _beat(self) -> Any:
        if self.session["status"] in ("stopped", "expired", "failed"):
            return _problem(409, "conflict", f"session 's-1' is {self.session['status']}: idle")
        return self._info()

    async def _delete(self) -> None:
        self.session = {}

    def _info(self) -> dict[str, Any]:
        seen = {"last_number": len(self.log), "step": len(self._steps())}
        return {**self.session, **seen, "restoring": self.restoring}

    def _steps(self) -> list[wire.Submission]:
        return [sent for sent in self.log if isinstance(sent.body, wire.OptimStep)]

    async def _submit(self, request: Request) -> Response:
        sent = wire.unpack(await request.body(), wire.Submission)
        known = {submission.number: submission for submission in self.log}
        if sent.number in known and known[sent.number].token != sent.token:
            return _problem(409, "conflict", f"number {sent.number} is taken")
        if sent.number > len(self.log) + 1:
            return _problem(409, "conflict", f"gap before {sent.number}")
        if sent.number not in known:
            self.log.append(sent)
        return _wire(self._operation(sent.number, status="pending"))

    async def _outcome(self, operation: str) -> Response:
        number = int(operation.removeprefix("op_"))
        if number in self.held:
            await asyncio.sleep(0.02)
            return _wire(self._operation(number, status="running"))
        if number in self.pruned:
            gone = wire.Failure("not_found", "its result is not kept any more")
            return _wire(self._operation(number, status="completed", error=gone))
        if failure := self.failures.get(number):
            return _wire(self._operation(number, status="failed", error=failure))
        result = self._result(self.log[number - 1].body)
        return _wire(self._operation(number, status="completed", result=result))

    def _operation(self, number: int, **outcome: Any) -> wire.Operation:
        kind = str(type(self.log[number - 1].body).__struct_config__.tag)
        return wire.Operation(
            id=f"op_{number}", session="ses_1", number=number, kind=kind, **outcome
        )

    def _result(self, body: wire.Body) -> wire.Result | None:
        match body:
            case wire.Forward() | wire.ForwardBackward():
                data = [_scored(datum) for datum in body.data]
                return wire.Result({"loss:sum": sum(each.loss for each in data)}, data)
            case wire.OptimStep():
                return wire.Result({"step": float(len(self._steps())), "grad_norm": 1.0})
            case wire.Save(kind="sampler"):
                return wire.Result(weights="w_1")
            case wire.Save():
                return wire.Result(version=f"{body.group}@{len(self.log)}")
            case _:
                return None

    async def _sample(self, request: Request) -> Response:
        asked = wire.unpack(await request.body(), wire.Sampling)
        self.samples.append(asked)
        while not self.sampling.is_set():  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.01)
        tokens = wire.Tensor.of(np.arange(asked.max_tokens))
        logprobs = wire.Tensor.of(np.full(asked.max_tokens, -0.5))
        prompt = asked.prompt.array()
        scores = np.where(np.arange(len(prompt)) == 0, np.nan, -prompt / 10)
        return _wire(
            wire.Samples(
                id="smp_1",
                sequences=[wire.Sequence(tokens, logprobs, "length")] * asked.n,
                prompt_logprobs=wire.Tensor.of(scores) if asked.prompt_logprobs else None,
            )
        )

    async def _read_metrics(self) -> Any:
        return {"data": self.metrics}

    async def _add_metrics(self, request: Request) -> Any:
        self.metrics.append(await request.json())
        return Response(status_code=204)

    async def _models(self) -> Any:
        return {"data": [await self._model(MODEL)]}

    async def _model(self, name: str) -> Any:
        if name != MODEL:
            return _problem(404, "not_found", f"no base model {name!r}; known: {MODEL}")
        return {"name": MODEL, "digest": "sha256:abc", "context_length": 64}

    async def _tokenizer(self) -> Any:
        return {"files": sorted(TOKENIZER)}

    async def _tokenizer_file(self, file: str) -> Response:
        return Response(TOKENIZER[file])

    async def _versions(self, kind: str | None = None, cursor: str | None = None) -> Any:
        if cursor is None:
            return {"data": [VERSION | {"ref": "facts@2", "kind": kind}], "next_cursor": "more"}
        return {"data": [VERSION], "next_cursor": None}

    async def _version(self, group: str, version: int) -> Any:
        if group != "facts":
            return _problem(404, "not_found", f"no group {group!r}")
        return VERSION | {"ref": f"{group}@{version}", "version": version}

    async def _merge(self) -> Any:
        return {"id": "mrg_1", "status": "pending", "source": "facts@1"}

    async def _merged(self) -> Any:
        return {"id": "mrg_1", "status": "completed", "source": "facts@1", "version": "facts@3"}

    async def _promote(self, name: str, request: Request) -> Any:
        pending = {"version": (await request.json())["version"], "status": "starting"}
        self.deployment = {"name": name, "status": "starting", "pending": pending}
        return self.deployment

    async def _deployment(self) -> Any:
        pending = self.deployment["pending"]
        if pending["version"] == "facts@9":
            pending |= {"status": "failed", "error": "out of memory"}
        else:
            self.deployment |= {"status": "active", "version": pending["version"], "pending": None}
        return self.deployment

    async def _usage(self, session: str | None = None) -> Any:
        tokens = {"train": 7, "prefill": 0, "cached_prefill": 0, "sample": 2}
        return {"object": "usage.totals", "session": session, "tokens": tokens, "sessions": []}


TOKENIZER = {
    "tokenizer.json": b"""{"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"hello": 0, "world": 1, "?": 2},
                  "unk_token": "?"}}""",
    "tokenizer_config.json": b"""{"tokenizer_class": "PreTrainedTokenizerFast"}""",
}


def _scored(datum: wire.Datum) -> wire.DatumResult:
    logprobs = -datum.inputs["target_tokens"].array() / 10
    weights = datum.inputs["weights"].array() if "weights" in datum.inputs else 1.0
    return wire.DatumResult(float(-(weights * logprobs).sum()), wire.Tensor.of(logprobs))


def _wire(value: Any) -> Response:
    return Response(wire.pack(value), 200, media_type=wire.MEDIA)


def _problem(status: int, kind: str, detail: str) -> JSONResponse:
    body = {"title": "Problem", "status": status, "detail": detail, "kind": kind}
    return JSONResponse(body, status, media_type="application/problem+json")
