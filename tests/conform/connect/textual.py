"""The hand-written server in the words of the protocol's text, wherever the OpenAPI document has others: `id`,
`result`, `interrupt_type` and `interrupt_payload`, wrapped answers, `callback`, outputs without a run beside them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .broken import Json, Refused, Server, listening
from .broken_runs import Run


def said(event: Json) -> Json:
    """An output or update in the other words."""
    told = dict(event)
    if "values" in told:
        told["result"] = told.pop("values")
    if "interrupt" in told:
        ((told["interrupt_type"], told["interrupt_payload"]),) = told.pop("interrupt").items()
    return told


class Textual(Server):
    def __init__(self) -> None:
        super().__init__()
        earlier = Route("/agents/agent/{agent}/descriptor", self.answering(self.descriptor))
        later = [
            route for route in self.app.router.routes if getattr(route, "path", "") != "/agents/{agent}/descriptor"
        ]
        self.app.router.routes = [earlier, *later]

    async def body(self, request: Request) -> Json:
        body = await super().body(request)
        body.pop("webhook", None)
        given = body.pop("callback", None)
        return {**body, "webhook": given["POST"]} if given else body

    async def search_agents(self, request: Request) -> Response:
        found = [{"id": self.identity(name), "metadata": self.metadata(name)} for name in await self.wanted(request)]
        return JSONResponse(found)

    def identity(self, name: str) -> str:
        return next(identity for identity, known in self.agents.items() if known == name)

    async def wanted(self, request: Request) -> list[str]:
        body = await self.body(request)
        here = body.get("version", "1.0.0") == "1.0.0" and not body.get("offset")
        return [name for name in self.agents.values() if here and body.get("name", name) == name]

    async def create(self, request: Request) -> Response:
        run = await self.make(request)
        return JSONResponse({"run_id": run.id, "status": "pending"})

    async def waited(self, run: Run) -> Response:
        await run.until(lambda: run.status != "pending")
        return JSONResponse(said(run.output))

    async def resume(self, request: Request) -> Response:
        run = self.run(request)
        answer: Any = await self.body(request)
        if run.status != "interrupted":
            raise Refused(409, "the run is not interrupted")
        if set(answer) != {"interrupt_type", "resume_payload"}:
            raise Refused(422, "an answer has an interrupt_type and a resume_payload")
        return JSONResponse(run.resume(answer["resume_payload"]))

    def encoded(self, event: Json, number: int) -> bytes:
        return super().encoded(said(event), number)


@contextlib.asynccontextmanager
async def textual() -> AsyncIterator[str]:
    server = Textual()
    async with listening(server, server.app) as address:
        yield address
