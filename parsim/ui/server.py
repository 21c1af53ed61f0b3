"""The server: the page, questions with answers in JSON or in lines of JSON, reports. It listens on 127.0.0.1 only.

Of questions of one tab the newest counts; what is older is answered ``{"stale": true}``, or ended where it runs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from parsim.ui.guard import HEADERS, NOTHING, REPORT, Guard, Refused, page_policy
from parsim.ui.page import page
from parsim.ui.workers import Desk, Lost, Worker

LIVE, EXACT, SEARCH = 10.0, 120.0, 3600.0
"""how long an answer may take [s]"""
SEARCHES = 2
"""at once"""
_REPORTS, _TABS = 32, 256
"""states of reports, and tabs, that are remembered"""
PATIENCE, PARTS = 1.0, 64
"""how long [s], and how many parts of, what comes with a refused request is taken"""
_ALIVE = 1.0
Document = dict[str, Any]
STATE = {"tab": str, "number": int, "state": dict}


class PlannerServer:
    """One server's processes and what it remembers."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._desks: dict[str, Desk] = {}
        self.searches: set[Worker] = set()
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._states: OrderedDict[str, Document] = OrderedDict()
        self._form: Document | None = None

    def desk(self, name: str) -> Desk:
        """The processes for ``live`` or ``exact`` questions."""
        return self._desks[name]

    @asynccontextmanager
    async def at_work(self, _: Starlette) -> AsyncIterator[None]:
        """Start the processes, and end them."""
        self._desks = {"live": Desk(spare=False), "exact": Desk(spare=True)}
        warming = asyncio.create_task(self._one("warm"))
        try:
            yield
        finally:
            warming.cancel()
            for desk in self._desks.values():
                desk.end()
            for worker in list(self.searches):
                worker.end()

    def _is_newest(self, kind: str, asked: Document) -> bool:
        """Whether no later question of the tab has come; this one is remembered."""
        key = (kind, asked["tab"][:64])
        newest: int = max(asked["number"], self._newest.pop(key, asked["number"]))
        self._newest[key] = newest
        while len(self._newest) > _TABS:
            self._newest.popitem(last=False)
        return bool(newest == asked["number"])

    # -- the page -----------------------------------------------------------------------------------------------------

    async def home(self, request: Request) -> Response:
        """The page; with the token where the address holds the key that was printed."""
        nonce = secrets.token_urlsafe(16)
        token = self.guard.token if self.guard.admitted(request.query_params.get("key")) else ""
        return HTMLResponse(page(nonce, token), headers={"content-security-policy": page_policy(nonce)})

    async def report(self, request: Request) -> Response:
        """A report whose address was asked for."""
        state = self._states.get(request.path_params["name"])
        if state is None:
            return PlainTextResponse("There is no such report any more. Open it from the page again.", 404)
        answer: Document = {"findings": []}
        try:
            desk = self.desk("exact")
            async with desk.turn:
                async for one in desk.ask("report", state, limit=EXACT):
                    answer = one
        except Lost as lost:
            return PlainTextResponse(f"The report was not finished ({lost.reason}).", 503)
        if "html" not in answer:
            return PlainTextResponse("\n".join(str(finding["message"]) for finding in answer["findings"]), 422)
        return HTMLResponse(answer["html"], headers={"content-security-policy": REPORT})

    # -- questions ----------------------------------------------------------------------------------------------------

    async def form(self, request: Request) -> Response:
        """What the page is made of."""
        await self.guard.document(request, {})
        if self._form is None:
            self._form = await self._one("form")
        return JSONResponse(self._form)

    async def live(self, request: Request) -> Response:
        """The bound of a state."""
        return await self._newest_of("live", await self.guard.document(request, STATE))

    async def choices(self, request: Request) -> Response:
        """Legal values, repairs, the file and the command of a state."""
        return await self._newest_of("choices", await self.guard.document(request, STATE))

    async def _newest_of(self, kind: str, asked: Document) -> Response:
        if not self._is_newest(kind, asked):
            return JSONResponse({"stale": True})
        return JSONResponse(await self._one(kind, asked["state"], still=lambda: self._is_newest(kind, asked)))

    async def drop(self, request: Request) -> Response:
        """The state of a file that was dropped on the page."""
        asked = await self.guard.document(request, {"name": str, "text": str})
        return JSONResponse(await self._one("drop", asked["text"], asked["name"]))

    async def _one(self, job: str, *arguments: Any, still: Callable[[], bool] = lambda: True) -> Document:
        """The one answer of a live question."""
        desk, found = self.desk("live"), {"kind": "error", "findings": []}
        try:
            async with desk.turn:
                if not still():
                    return {"stale": True}
                async for one in desk.ask(job, *arguments, limit=LIVE):
                    found = one
        except Lost as lost:
            return {"kind": "lost", "reason": lost.reason}
        self.desk("exact").start()  # now that somebody is there who answers at once
        return found

    async def exact(self, request: Request) -> Response:
        """Simulations of a state, in lines."""
        asked = await self.guard.document(request, STATE)
        newest = self._is_newest("exact", asked)

        async def lines() -> AsyncIterator[Document]:
            desk = self.desk("exact")
            if not newest:
                yield {"kind": "stale"}
                return
            async with desk.turn:
                async for one in desk.ask("simulated", asked["state"], limit=EXACT, alive=_ALIVE / 4):
                    if not self._is_newest("exact", asked):
                        yield {"kind": "stale"}
                        return
                    yield one

        return _stream(lines())

    async def search(self, request: Request) -> Response:
        """The best strategy of a state, in lines; whoever stops reading ends it."""
        asked = await self.guard.document(request, {"state": dict})
        if len(self.searches) >= SEARCHES:
            return JSONResponse({"kind": "busy", "most": SEARCHES})

        async def lines() -> AsyncIterator[Document]:
            worker = Worker()
            self.searches.add(worker)
            answers = worker.ask("search", asked["state"], limit=SEARCH, alive=_ALIVE)
            try:
                async for one in answers:
                    yield one
            finally:
                self.searches.discard(worker)
                await answers.aclose()  # type: ignore[attr-defined]
                worker.end()

        return _stream(lines())

    async def address(self, request: Request) -> Response:
        """Where the report of a state will be."""
        asked = await self.guard.document(request, {"state": dict})
        name = secrets.token_urlsafe(16)
        self._states[name] = asked["state"]
        while len(self._states) > _REPORTS:
            self._states.popitem(last=False)
        return JSONResponse({"path": f"/report/{name}"})


def _stream(lines: AsyncIterator[Document]) -> Response:
    """Documents as lines of JSON."""

    async def text() -> AsyncIterator[bytes]:
        try:
            async for one in lines:
                yield json.dumps(one).encode() + b"\n"
        except Lost as lost:
            yield json.dumps({"kind": "lost", "reason": lost.reason}).encode() + b"\n"
        finally:
            await lines.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(text(), media_type="application/x-ndjson")


class Checked:
    """The application behind its guard; every answer gets the headers."""

    def __init__(self, inner: ASGIApp, guard: Guard) -> None:
        self.inner, self.guard = inner, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        try:
            self.guard.check(Request(scope))
        except Refused as refused:
            await _taken(receive)
            await _refusal(refused)(scope, receive, _with_headers(send))
            return
        await self.inner(scope, receive, _with_headers(send))


async def _taken(receive: Receive) -> None:
    """Take what comes with a request that is refused: a connection that closes on bytes nobody read is reset, and the answer lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            for _ in range(PARTS):
                if not (await receive()).get("more_body"):
                    return


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            had = {name for name, _ in message["headers"]}
            more = HEADERS | {"content-security-policy": NOTHING}
            message["headers"] += [(name.encode(), value.encode()) for name, value in more.items() if name.encode() not in had]
        await send(message)

    return sending


def _refusal(refused: Refused) -> Response:
    return PlainTextResponse(refused.why, refused.status, headers={"connection": "close"})


async def _refused(_: Request, error: Exception) -> Response:
    return _refusal(error) if isinstance(error, Refused) else PlainTextResponse("internal error", 500)


def application(guard: Guard) -> tuple[ASGIApp, PlannerServer]:
    """The application, and what works behind it."""
    planner = PlannerServer(guard)
    questions: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "form": planner.form, "live": planner.live, "choices": planner.choices, "exact": planner.exact, "search": planner.search,
        "report": planner.address, "drop": planner.drop,
    }  # fmt: skip
    routes = [
        Route("/", planner.home),
        Route("/report/{name}", planner.report),
        *(Route(f"/api/{name}", answer, methods=["POST"]) for name, answer in questions.items()),
    ]
    inner = Starlette(routes=routes, lifespan=planner.at_work, exception_handlers={Refused: _refused})
    return Checked(inner, guard), planner
