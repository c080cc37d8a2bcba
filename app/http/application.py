"""The FastAPI application: routes, and errors in the form of the REST proxy."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp

from app import __version__
from app.core.errors import BrokerUnavailable, FirnError
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.notices import log_line
from app.core.seams import Clock
from app.core.turns import run
from app.http import compactions, costs, documentation, drains, metrics
from app.http.access import Access
from app.http.asked_once import AskedOnce
from app.http.bodies import JSON_TYPE, ClientLeft, json_response
from app.http.body_budget import BodyBudget
from app.http.console.acts import exporting as console_exporting
from app.http.console.acts import following as console_following
from app.http.console.acts import producing as console_producing
from app.http.console.acts import resending as console_resending
from app.http.console.acts import resetting as console_resetting
from app.http.console.console import Console
from app.http.console.pages import brokers as console_brokers
from app.http.console.pages import cost as console_cost
from app.http.console.pages import groups as console_groups
from app.http.console.pages import logins as console_logins
from app.http.console.pages import messages as console_messages
from app.http.console.pages import overview as console_overview
from app.http.console.pages import rules as console_rules
from app.http.console.pages import runbooks as console_runbooks
from app.http.console.pages import schemas as console_schemas
from app.http.console.pages import store as console_store
from app.http.console.pages import topic_groups as console_topic_groups
from app.http.console.pages import topics as console_topics
from app.http.console.pages import transactions as console_transactions
from app.http.console.pages import users as console_users
from app.http.console.rendering import ConsoleRoute, refused
from app.http.console.sessions import accepts_html, is_console
from app.http.consumers.table import ConsumerInstances, InstanceLimits
from app.http.direct_routes import DirectRoutes, add_routes
from app.http.errors import REFUSED, Error, RestAnswer, RestError, answer_of
from app.http.front import Front, Measures
from app.http.gateway import Gateway, HttpSettings, open_gateway
from app.http.guard import Guard
from app.http.health import Health
from app.http.health import HealthReader as HealthListener
from app.http.quick_records import QuickRecords
from app.http.read_budget import ReadBudget
from app.http.registry import serving as schema_registry
from app.http.rest_v2 import consumers as consumers_v2
from app.http.rest_v2 import produce as produce_v2
from app.http.rest_v2 import topics as topics_v2
from app.http.rest_v3 import (
    acls,
    clusters,
    configs,
    groups,
    reassignments,
    record_batches,
    record_reads,
    records,
    share_groups,
    topics,
)
from app.http.schemas import components, describe_errors
from app.http.serving import caller_of, counts_no_more, gateway_of

if TYPE_CHECKING:
    from app.http.callers import CallerLimits, Callers
    from app.http.processes.siblings import Siblings
    from app.http.traced import HttpTracing

_ROUTES: Final = (
    records,
    record_batches,
    record_reads,
    # Paths with a literal "-" in the place of a name come before those with a name.
    reassignments,
    configs,
    clusters,
    topics,
    groups,
    share_groups,
    acls,
    compactions,
    topics_v2,
    produce_v2,
    consumers_v2,
)
"""Modules with a router, and with the types of their bodies. The first route whose path matches is taken."""
_PAGES: Final = (
    console_overview,
    console_topics,
    console_topic_groups,
    console_messages,
    console_producing,
    console_resending,
    console_exporting,
    console_following,
    console_resetting,
    console_groups,
    console_schemas,
    console_brokers,
    console_store,
    console_transactions,
    console_rules,
    console_users,
    console_runbooks,
    console_cost,
    console_logins,
)
"""Modules of the console with a router."""
_BODIES: Final = (Error, *(body for module in _ROUTES for body in module.BODIES), *schema_registry.BODIES)
"""Types of bodies whose schemas are in the OpenAPI document."""

DESCRIPTION = """\
Produce to, read from and administer a Firn cluster over HTTP, by the conventions of Confluent's REST Proxy v3 and v2.
Errors are `{"error_code": 40403, "message": "…"}`: the first three digits of the code are the HTTP status.
"""


class Application(FastAPI):
    """An application with middleware around that of FastAPI, which direct routes go without: it takes 5 µs of each request.

    An error that no handler takes is answered by uvicorn, as FastAPI's middleware does it.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.around: list[partial[Any]] = []
        """Middleware, the innermost first."""

    def build_middleware_stack(self) -> ASGIApp:
        stack = super().build_middleware_stack()
        for middleware in self.around:
            stack = middleware(stack)
        return stack


def create_app(
    settings: HttpSettings,
    *,
    clock: Clock,
    rng: random.Random,
    registry: Registry | None = None,
    faults: Faults | None = None,
    limits: CallerLimits | None = None,
) -> Application:
    """The application. Its clients are opened when it starts and closed when it ends.

    It counts into ``registry``, or into a new one. ``faults`` hears of errors that are not the fault of a request's sender.
    ``limits`` of callers who log in, if others than usual.

    Raises: ConfigError if callers would have rights that are not theirs, or none could log in.
    """
    told = Faults(log_line) if faults is None else faults
    registry = Registry() if registry is None else registry
    access = Access(hosts=settings.allowed_hosts, origins=settings.allowed_origins)
    guard, measures = Guard(access=access, registry=registry), Measures(registry)
    log_in = False
    if settings.client or settings.anonymous:
        from app.http.callers import Callers, callers_log_in, check_reach

        check_reach(settings)
        log_in = callers_log_in(settings.client)
    has_gateway = settings.anonymous or not log_in
    tracing: HttpTracing | None = None
    if settings.tracing_endpoint:
        from app.http.traced import HttpTracing

        tracing = HttpTracing(settings, clock=clock, rng=rng, registry=registry, faults=told)
    quick: QuickRecords | None = None
    if tracing is None and not log_in:
        quick = QuickRecords(records.RECORDS, guard=guard, measures=measures, registry=registry)
    siblings = None
    if settings.worker is not None:
        from app.http.processes.siblings import Siblings

        siblings = Siblings(settings.worker)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.gateway = app.state.callers = None
        read_budget = ReadBudget()
        async with AsyncExitStack() as stack:
            if tracing is not None:
                await stack.enter_async_context(tracing)
            if has_gateway:
                opening = open_gateway(
                    settings, clock=clock, rng=rng, registry=registry, faults=told, read_budget=read_budget
                )
                app.state.gateway = await stack.enter_async_context(opening)
            if quick is not None:
                quick.gateway = app.state.gateway
                stack.callback(setattr, quick, "gateway", None)
            if log_in:
                opened = Callers(
                    settings,
                    clock=clock,
                    rng=rng,
                    registry=registry,
                    faults=told,
                    limits=limits,
                    read_budget=read_budget,
                )
                app.state.callers = await stack.enter_async_context(opened)
            limits_of_instances = InstanceLimits(idle_timeout_ms=settings.instance_timeout_ms)
            process = 0 if settings.worker is None else settings.worker.index
            instances = ConsumerInstances(limits_of_instances, registry=registry, process=process)
            app.state.consumer_instances = await stack.enter_async_context(instances)
            yield

    app = Application(
        title="Firn",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # Looked for at each request otherwise; older FastAPI has none, and takes the argument too.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.health = HealthListener()
    app.state.siblings = siblings
    app.state.quick_records = quick
    app.state.unready = AskedOnce(lambda: _ask_unready(app), keeps=True)
    app.state.body_budget = BodyBudget()
    app.state.console = Console(
        clock, encrypted=settings.plain_credentials, read_only=settings.console_read_only, masks=settings.console_masks
    )
    for module in _ROUTES:
        add_routes(app, module.router)
    add_routes(app, costs.router)
    add_routes(app, drains.router)
    for page in _PAGES:
        add_routes(app, page.router)
    app.router.add_api_route("/", _welcome, include_in_schema=False, route_class_override=ConsoleRoute)
    app.add_api_route("/docs", _documentation, include_in_schema=False)
    app.add_api_route("/openapi.json", _openapi, include_in_schema=False)
    app.add_api_route("/healthz", _healthz, tags=["Health"], summary="Whether this process runs")
    app.add_api_route(
        "/readyz", _readyz, tags=["Health"], summary="Whether a broker can serve something of what it leads"
    )
    app.add_api_route(
        "/metrics", _metrics, tags=["Health"], summary="Metrics in Prometheus' text format", response_class=Response
    )
    app.add_exception_handler(FirnError, _firn_error)
    app.add_exception_handler(RestError, _firn_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ClientLeft, _client_left)
    schema_registry.add_registry(app)
    app.around.append(partial(DirectRoutes, routes=_direct()))
    if log_in:
        from app.http.login import Login

        app.around.append(partial(Login, settings=settings))
    if siblings is not None:
        from app.http.passing_on import PassingOn

        app.around.append(partial(PassingOn, siblings=siblings))
    app.around.append(partial(Front, guard=guard, measures=measures))
    if tracing is not None:
        from app.http.traced import TracedRequests

        app.around.append(partial(TracedRequests, tracer=tracing.tracer))
    _complete_openapi(app)
    app.state.documents = documentation.Documents(app.openapi)
    return app


def _direct() -> list[APIRoute]:
    """The routes of the most frequent requests."""
    wanted = {records.RECORDS, *schema_registry.FREQUENT}
    routers = (records.router, *schema_registry.ROUTERS)
    return [
        route for router in routers for route in router.routes if isinstance(route, APIRoute) and route.path in wanted
    ]


async def _welcome(request: Request) -> Response:
    """The console for browsers, else links for programs."""
    if accepts_html(request.scope["headers"]):
        return await console_overview.overview(request)
    base = request.base_url
    links = {"clusters": f"{base}v3/clusters", "documentation": f"{base}docs", "metrics": f"{base}metrics"}
    return JSONResponse({"name": "Firn", "version": __version__, **links}, headers={"vary": "Accept"})


async def _documentation(request: Request) -> Response:
    documents: documentation.Documents = request.app.state.documents
    return HTMLResponse(await documents.html())


async def _openapi(request: Request) -> Response:
    documents: documentation.Documents = request.app.state.documents
    return Response(await documents.json(), media_type=JSON_TYPE)


async def _healthz() -> Response:
    return JSONResponse({"status": "ok"})


async def _readyz(request: Request) -> Response:
    refusal = await _unready(request.app)
    if refusal is not None:
        return _rest_response(RestAnswer(503, 50302, str(refusal)))
    siblings: Siblings | None = request.app.state.siblings
    sentence = "" if siblings is None else await siblings.refusal()
    if sentence:
        return _rest_response(RestAnswer(503, 50302, sentence))
    health: Health | None = request.app.state.health.newest
    if health is None:  # this process was not started by a broker
        return JSONResponse({"status": "ready"})
    if health.ready:
        return json_response({"status": "ready", **health.shown()})
    answer = RestAnswer(503, 50302, health.sentence())
    response = json_response({"error_code": answer.error_code, "message": answer.message, **health.shown()}, 503)
    response.headers.update(answer.headers())
    return response


async def _unready(app: FastAPI) -> FirnError | None:
    """Why this process reaches no broker, if it reaches none. The answer may be a second old."""
    asked: AskedOnce[FirnError | None] = app.state.unready
    return await asked.answer()


async def _ask_unready(app: FastAPI) -> FirnError | None:
    refusal = await _check_ready(app)
    if refusal is not None:
        _tell_unready(app, refusal)
    return refusal


async def _check_ready(app: FastAPI) -> FirnError | None:
    callers: Callers | None = app.state.callers
    gateway: Gateway = app.state.gateway
    try:
        await (gateway if callers is None else callers).check_ready()
    except FirnError as error:
        return error
    except TimeoutError:
        return BrokerUnavailable("No broker answered in time.")
    return None


def _tell_unready(app: FastAPI, refusal: FirnError) -> None:
    callers: Callers | None = app.state.callers
    gateway: Gateway = app.state.gateway
    if callers is None:
        gateway.tell("/readyz", refusal)
    else:
        callers.tell_unavailable(refusal)


async def refusal_of(app: FastAPI) -> str:
    """Why this process reaches no broker, as a sentence; empty if it does."""
    refusal = await _unready(app)
    return "" if refusal is None else str(refusal)


async def _metrics(request: Request) -> Response:
    samples = await gateway_of(request).samples()
    siblings: Siblings | None = request.app.state.siblings
    if siblings is not None:
        samples += await siblings.samples()
    pieces = await run(metrics.render_steps(samples))
    return Response(b"".join(pieces), media_type=metrics.CONTENT_TYPE)


# --- errors ---------------------------------------------------------------------------------------------------------


def _rest_response(answer: RestAnswer) -> Response:
    return Response(answer.body(), answer.status, headers=answer.headers(), media_type=JSON_TYPE)


def _wants_page(request: Request) -> bool:
    """Whether a browser asks for a page of the console."""
    console: Console = request.app.state.console
    return console.installed and is_console(request.url.path) and accepts_html(request.scope["headers"])


async def _told(request: Request, answer: RestAnswer) -> Response:
    """An error for a browser that is in the console, or for a program."""
    return await refused(request, answer) if _wants_page(request) else _rest_response(answer)


async def _firn_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, (FirnError, RestError))
    caller = caller_of(request)
    if caller is not None and counts_no_more(caller, error):
        from app.http.login import challenges

        callers: Callers = request.app.state.callers
        callers.end(caller)
        response = _rest_response(REFUSED)
        response.raw_headers.extend(challenges(callers.offered))
        return response
    if isinstance(error, FirnError):
        gateway_of(request).tell(getattr(request.scope.get("route"), "path", "unmatched"), error)
    return _rest_response(answer_of(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"HTTP {error.status_code} {HTTPStatus(error.status_code).phrase}"
    if error.status_code == HTTPStatus.NOT_FOUND and _wants_page(request):
        message = f"The console has no page {request.url.path}."
    response = await _told(request, RestAnswer(error.status_code, error.status_code, message))
    response.headers.update(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(_methods_of(request))
    return response


def _methods_of(request: Request) -> list[str]:
    """The methods that a path has. Each of its routes has one of them (RFC 9110, section 15.5.6)."""
    found: set[str] = set()
    routes: list[BaseRoute] = request.app.routes
    for route in routes:
        match, _ = route.matches(request.scope)
        if match is Match.PARTIAL:
            found.update(getattr(route, "methods", None) or ())
    return sorted(found | {"HEAD"} if "GET" in found else found)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return await _told(request, RestAnswer(422, 422, f"{where or 'The request'}: {first['msg']}."))


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


def _complete_openapi(app: FastAPI) -> None:
    """Add the schemas of bodies, to which the routes refer, and describe errors."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        schema = generate()
        describe_errors(schema)
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components(_BODIES))
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
