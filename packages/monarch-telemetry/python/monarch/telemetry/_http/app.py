"""The ASGI application: what each request must have before its handler runs, and what each answer has.

A request passes, in this order: host and origin, token, route, scope, parameters, body; then its handler runs in a thread, for as long as
the route allows. Every step that fails is an answer and a row of the audit.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from email.utils import formatdate
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as StarletteRoute
from starlette.types import Message, Receive, Scope, Send

from monarch.extension.masking import Masking
from monarch.telemetry._asking import ASKER, Asker
from monarch.telemetry._collector.allocator import ANSWERS, LONG
from monarch.telemetry._http import actions, admin, dag, dashboard_api, diagnosis, pages, query, snapshots, stacks, summary
from monarch.telemetry._http.audit import Audit, Entry, Outcome
from monarch.telemetry._http.auth import Names, Tokens, bearer
from monarch.telemetry._http.calls import Call, Caller, Handler, Reply, State, Threads
from monarch.telemetry._http.cursors import Cursors
from monarch.telemetry._http.events import Events
from monarch.telemetry._http.json_rows import encode
from monarch.telemetry._http.parts import Parts
from monarch.telemetry._http.places import STATE, Place
from monarch.telemetry._http.problems import Problem, problem_of
from monarch.telemetry._http.routes import ARROW, EVENTS, JSON, ROUTES, Route
from monarch.telemetry._http.schema import checked, fields, parsed
from monarch.telemetry._sql.limits import DEFAULT
from monarch.telemetry.errors import TelemetryError

HANDLERS: Mapping[str, Handler] = {
    **admin.HANDLERS,
    **query.HANDLERS,
    **stacks.HANDLERS,
    **diagnosis.HANDLERS,
    **actions.HANDLERS,
    **dashboard_api.HANDLERS,
    **summary.HANDLERS,
    **dag.HANDLERS,
    **pages.HANDLERS,
    **snapshots.HANDLERS,
}
# The most handlers of requests at the same time, and of one token on routes with turns.
THREADS, TURNS = 16, 2
# The most requests of one token that wait for a turn.
MOST_WAITING = 64
# The most seconds in which a client sends a body.
BODY_SECONDS = 20.0
_API = ("/v1/", "/api/", "/metrics", "/SKILL.md", "/healthz")
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
# The approximate bytes of objects per byte of JSON.
_OBJECTS = 8
_FOR_EVER = "public, max-age=31536000, immutable"
_log = logging.getLogger("monarch.telemetry")


class App:
    """The application of `parts`, for one event loop. `clock` gives seconds since the epoch; `routes` may have other times or limits."""

    def __init__(
        self,
        parts: Parts,
        tokens: Tokens,
        names: Names,
        *,
        clock: Callable[[], float] = time.time,
        routes: Sequence[Route] = ROUTES,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self._parts, self._tokens, self._names, self._clock = parts, tokens, names, clock
        self._body_seconds = body_seconds
        masking = Masking(tokens)
        self._state = State(Cursors(), masking)
        self.audit = Audit(parts.audit, masking, clock=clock)
        self._threads = Threads(THREADS)
        self._turns = {scope: asyncio.Semaphore(TURNS) for scope in ("read", "admin")}
        self._waiting = {"read": 0, "admin": 0}
        self.events = Events(parts.engine, self._threads.run, clock=clock)
        self._flushing: asyncio.Task[None] | None = None
        # HEAD is served as GET: the server omits the body.
        found = [StarletteRoute(route.path, partial(self._respond, route), methods=[route.method]) for route in routes]
        if parts.files is not None:
            found.append(StarletteRoute("/{path:path}", self._file, methods=["GET"]))
        self._routes = Starlette(routes=found, exception_handlers={HTTPException: self._no_route})
        self._routes.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application has no {scope['type']}")
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": _headers(message["headers"], scope["path"], self._clock())}
            await send(message)

        request = Request(scope, receive)
        source = request.client.host if request.client else ""
        caller = Caller("none", source)
        try:
            scope["state"] = {**scope.get("state", {}), "base_url": f"{self._names.scheme}://{self._names.check(scope['headers'])}"}
            caller = self._caller(scope, source)
            scope["state"]["caller"] = caller
            await self._routes(scope, receive, answer)
        except ClientDisconnect:
            self._record(request, caller, "failed", "the client has gone")
        except Problem as problem:
            self._record(request, caller, _outcome(problem.status), f"{problem.status} {problem.message}")
            await self._failed(problem, scope["path"].startswith("/api/"))(scope, receive, answer)
        except Exception:
            if started:
                raise  # the connection ends, so that the client can detect the partial answer
            number = secrets.token_hex(4)
            _log.exception("a request has failed (%s)", number)
            self._record(request, caller, "failed", f"500 {number}")
            problem = Problem(500, "internal_error", f"the request has failed\nhint: the log of the process has the reason: {number}")
            await self._failed(problem, scope["path"].startswith("/api/"))(scope, receive, answer)
        finally:
            if self.audit.waits and (self._flushing is None or self._flushing.done()):
                self._flushing = asyncio.create_task(self._flush())

    # Access

    def _caller(self, scope: Scope, source: str) -> Caller:
        """Whose request it is. `Problem` 401 without a token, unless the path has nothing of the job."""
        token = bearer(scope["headers"])
        found = None if token is None else self._tokens.scope(token)
        if found is not None:
            place: Place | None = scope["state"].get(STATE)
            if place is not None:
                place.proved()
            return Caller(found, source)
        path: str = scope["path"]
        is_page = self._parts.files is not None and scope["method"] in ("GET", "HEAD") and not f"{path}/".startswith(_API)
        if path == "/healthz" or is_page:
            return Caller("none", source)
        what = (
            "this needs a token, in the header Authorization, behind the word Bearer"
            if token is None
            else "the token is none of this server's"
        )
        raise Problem.unauthorized(f"{what}\nhint: tokens are in telemetry.json of the job's credentials folder")

    # Requests

    async def _respond(self, route: Route, request: Request) -> Response:
        began = time.monotonic()
        caller: Caller = request.state.caller
        target, detail = "", ""
        outcome: Outcome = "failed"
        try:
            if route.scope == "admin" and caller.scope != "admin":
                raise Problem.forbidden(
                    "this needs a token of the scope admin\nhint: telemetry.json of the job's credentials folder has it"
                )
            parameters = _parameters(route, request)
            target = _target(request, None)
            body = await self._body(route, request)
            target = _target(request, body)
            if route.operation == "events":
                response: Response = StreamingResponse(await self.events.stream(_last_id(request)), media_type=EVENTS)
            else:
                call = Call(
                    self._parts,
                    self._state,
                    caller,
                    request.path_params,
                    parameters,
                    body,
                    request.headers.get("accept", ""),
                    request.state.base_url,
                    time.monotonic() + route.seconds,
                )
                response = await self._run(route, call, request)
            outcome, detail = "done", f"{response.status_code} in {(time.monotonic() - began) * 1e3:.0f} ms"
            return response
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                if isinstance(error, ClientDisconnect):
                    detail = "the client has gone"
                    return Response(status_code=408, headers={"connection": "close"})
                number = secrets.token_hex(4)
                _log.exception("%s %s has failed (%s)", route.method, route.path, number)
                problem = Problem(500, "internal_error", f"the request has failed\nhint: the log of the process has the reason: {number}")
            outcome, detail = _outcome(problem.status), f"{problem.status} {problem.message}"
            return self._failed(problem, route.is_dashboard)
        finally:
            if route.operation not in ("health", "api_health") or outcome != "done":
                self.audit.add(
                    Entry(caller.name, caller.scope, caller.source, f"{route.method} {route.path}", target, outcome, detail or "ended")
                )

    async def _run(self, route: Route, call: Call, request: Request) -> Response:
        """Runs the handler; what it gives is made JSON in the same thread."""
        handler = HANDLERS[route.operation]
        asker = Asker()

        def work() -> Reply:
            # Each has its own thread.
            ASKER.set(asker)
            found = handler(call)
            made = found if isinstance(found, Reply) else Reply(encode(found))
            if isinstance(made.content, bytes):
                ANSWERS.had(_OBJECTS * len(made.content))
            return made

        if route.scope == "none":
            return _response(work())
        turns = self._turns[call.caller.scope] if route.turns else None
        if turns is None:
            return await self._sent(await self._worked(work, route, route.seconds, asker, request))
        remaining = call.remaining
        # Waiting is a part of the time of a query.
        call = call._replace(deadline=min(call.deadline, time.monotonic() + _seconds(route, call.body)))
        await self._turn(turns, call, request)
        try:
            return await self._sent(await self._worked(work, route, remaining, asker, request))
        finally:
            turns.release()

    async def _worked(self, work: Callable[[], Reply], route: Route, seconds: float, asker: Asker, request: Request) -> Reply:
        """The result of `work`, whose questions are cancelled where its client leaves or its time is over; but not those of an action."""
        if not (route.turns or route.method == "GET"):
            return await self._threads.run(work, seconds)

        async def watch() -> None:
            await _until_gone(request)
            asker.leave()

        watching = asyncio.ensure_future(watch())
        try:
            return await self._threads.run(work, seconds)
        except (TelemetryError, Problem):
            if watching.done():
                raise ClientDisconnect from None
            raise
        finally:
            asker.leave()
            watching.cancel()

    async def _turn(self, turns: asyncio.Semaphore, call: Call, request: Request) -> None:
        """Takes a turn. `Problem` 504 at the deadline, 503 where too many wait; `ClientDisconnect` where no client waits any more."""
        if not turns.locked():
            await turns.acquire()
            return
        scope = call.caller.scope
        if self._waiting[scope] >= MOST_WAITING:
            raise Problem.unavailable(f"{MOST_WAITING} queries of this token wait for a turn already\nhint: ask again later")
        self._waiting[scope] += 1
        turn, gone = asyncio.ensure_future(turns.acquire()), asyncio.ensure_future(_until_gone(request))
        try:
            await asyncio.wait((turn, gone), timeout=call.remaining, return_when=asyncio.FIRST_COMPLETED)
            if turn.done() and not gone.done():
                return
            if turn.done() or not turn.cancel():
                turns.release()
            if gone.done():
                raise ClientDisconnect
            raise Problem.timeout(f"{TURNS} queries of this token are running already: its time was over while it waited for a turn")
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turns.release()
            turn.cancel()
            raise
        finally:
            gone.cancel()
            self._waiting[scope] -= 1

    async def _sent(self, reply: Reply) -> Response:
        """The answer; parts are made while it is sent."""
        if isinstance(reply.content, bytes):
            return _response(reply)
        parts = iter(reply.content)

        async def stream() -> AsyncIterator[bytes]:
            try:
                while (part := await self._threads.run(lambda: next(parts, None), 60.0)) is not None:
                    yield part
            finally:
                # The number of parts is unknown before there is one; an answer in parts is a long one.
                await self._threads.run(lambda: ANSWERS.had(LONG), 60.0)

        return StreamingResponse(stream(), media_type=reply.media)

    async def _body(self, route: Route, request: Request) -> Any:
        """The body as the route has it, checked. `Problem` 400, 408, 413."""
        if route.method != "POST":
            return None
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > route.body_bytes:
            raise Problem.bad_request(f"the body has {int(declared):,} bytes, the limit is {route.body_bytes:,}", status=413)
        data = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                async for part in request.stream():
                    data += part
                    if len(data) > route.body_bytes:
                        raise Problem.bad_request(f"the body has more than {route.body_bytes:,} bytes", status=413)
        except TimeoutError:
            raise Problem.bad_request(f"the body did not come within {self._body_seconds:g} s", status=408) from None
        if route.body == ARROW:
            return bytes(data)
        if route.body is None:
            return None
        return checked(_json(bytes(data)), route.body, "the body")

    def _failed(self, problem: Problem, text_only: bool) -> Response:
        """The answer to a request that was not done; a token that is in its text is masked."""
        masked = Problem(problem.status, problem.code, self._state.masking.text(problem.message), problem.details)
        headers = {"connection": "close"} if problem.status in (408, 413) else {}
        if problem.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Response(encode(masked.to_json(text_only=text_only)), problem.status, headers, JSON)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        if status == 405:
            problem = Problem.bad_request("this path has another method", status=405)
        else:
            problem = Problem.not_found("there is no such path\nhint: GET /v1/openapi.json has all")
        self._record(request, request.state.caller, "refused", f"{problem.status}")
        return self._failed(problem, request.url.path.startswith("/api/"))

    def _record(self, request: Request, caller: Caller, outcome: Outcome, detail: str) -> None:
        """A request that was not one of a route."""
        path = request.scope["path"]
        self.audit.add(Entry(caller.name, caller.scope, caller.source, f"{request.method} request", path, outcome, detail))

    # Files of the dashboard

    async def _file(self, request: Request) -> Response:
        assert self._parts.files is not None
        found = self._parts.files(request.path_params["path"])
        if found is None:
            return self._failed(Problem.not_found("there is no such file"), False)
        headers = {"etag": found.etag, "cache-control": _FOR_EVER if found.immutable else "no-cache"}
        if found.status == 200 and found.etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(found.data, found.status, headers, found.media)

    # The end

    async def _flush(self) -> None:
        while self.audit.waits:
            await self._threads.run(self.audit.flush, 60.0)

    @property
    def running(self) -> int:
        """Handlers that have not ended."""
        return self._threads.running

    def close(self) -> None:
        """Ends streams of events; in the event loop."""
        self.events.close()


def _headers(headers: Any, path: str, now: float) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with those that each has; a page may be kept if its server still has it, an answer not at all."""
    found: list[tuple[bytes, bytes]] = [*headers, *_HEADERS, (b"date", formatdate(now, usegmt=True).encode())]
    if not any(name == b"cache-control" for name, _ in headers):
        found.append((b"cache-control", b"no-store"))
    return found


def _response(reply: Reply) -> Response:
    assert isinstance(reply.content, bytes)
    return Response(reply.content, media_type=reply.media)


async def _until_gone(request: Request) -> None:
    """Ends when the client has ended the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _seconds(route: Route, body: Any) -> float:
    """What a request may take with its wait for a turn."""
    if route.operation not in ("query", "api_query"):
        return route.seconds
    wanted = body.get("timeout_s")
    return DEFAULT.seconds if wanted is None or wanted <= 0 else float(wanted)


def _outcome(status: int) -> Outcome:
    return "failed" if status >= 500 else "refused"


def _parameters(route: Route, request: Request) -> dict[str, Any]:
    known = {} if route.parameters is None else fields(route.parameters)
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise Problem.bad_request(f"there is no parameter {name!r}; there are {', '.join(known) or 'none'}")
        if name in found:
            raise Problem.bad_request(f"the parameter {name!r} is there twice")
        found[name] = parsed(value, known[name][0], name)
    return found


def _json(data: bytes) -> Any:
    import json

    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is no JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Problem.bad_request(f"the body is no JSON: {str(error)[:200]}") from None


def _target(request: Request, body: Any) -> str:
    """What a request is about, for the audit: the statement, the target of an action, or path and parameters."""
    given: Any = body
    if isinstance(given, dict):
        for name in ("sql", "target", "proc_ref"):
            if name in given:
                return str(given[name])  # pyright: ignore[reportUnknownArgumentType]
    path = "/".join(str(value) for value in request.path_params.values())
    # Not the text in the URL: secrets are masked by their form.
    parameters = "&".join(f"{name}={value}" for name, value in request.query_params.multi_items())
    return f"{path}?{parameters}" if parameters else path


def _last_id(request: Request) -> int | None:
    """From where a client goes on that was connected before."""
    given = request.headers.get("last-event-id", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else None
