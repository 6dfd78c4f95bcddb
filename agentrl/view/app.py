"""The web application: addresses, and what is answered when something can't be shown.

- only_reads: everything goes through `agentrl.store.reader`; no request changes a row.
- data_is_escaped: what models, tools and users wrote never acts on the browser: templates escape, control characters are shown
  as escapes, and the content policy lets no script run but the page's own file.
- down_is_said: an unreachable database is one clear message, and the page tries again by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

import jinja2
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from agentrl.errors import AgentRLError, NotReadyError, UnknownOutcome, UsageError
from agentrl.store.contract import RunRow
from agentrl.store.reader import Reader
from agentrl.view import list_pages, prometheus, query_pages, run_pages, trajectory_pages
from agentrl.view.asking import Asked
from agentrl.view.listing import CHOICES, FIELDS
from agentrl.view.page import NotFound, Page, whole_number
from agentrl.view.shown import cell
from agentrl.view.trajectory_json import plain

_POLICY = (
    "default-src 'none'; img-src data:; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


class View:
    """The pages over one store. ``reader`` takes as many threads as it has connections."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("agentrl.view"), autoescape=True, undefined=jinja2.StrictUndefined, finalize=cell,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.policies["json.dumps_kwargs"] = {"default": str}
        self._templates.filters["exact"] = lambda value: Markup(escape(value))
        self._templates.tests["id"] = lambda value: isinstance(value, UUID)
        self._templates.globals |= {"choices": CHOICES, "fields": FIELDS}

    def app(self, hosts: list[str]) -> Starlette:
        """``hosts``: names under which it answers; a page elsewhere that points its own name here gets nothing."""
        return Starlette(
            routes=[
                Mount("/static", StaticFiles(packages=[("agentrl.view", "static")])),
                *(Route(path, self._endpoint(show)) for path, show in _PAGES.items()),
                Route("/metrics", self._metrics),
                Route("/runs/{run}/newer", self._newer),
                Route("/trajectories/{id}/segments/{segment}/{part}", self._part),
            ],
            exception_handlers={HTTPException: self._no_such_page},
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        )

    def _endpoint(self, show: Callable[[Asked, Request], Page]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            def answer() -> Response:
                asked = Asked(self._reader)
                page = show(asked, request)
                if wants_json(request):
                    return _json(page.data)
                return self._html(page, request, asked.statements)

            return self._guarded(request, answer)

        return endpoint

    def _newer(self, request: Request) -> Response:
        def answer() -> Response:
            asked = Asked(self._reader)
            return _json({"newer": list_pages.newer(asked, _run(asked, request), _parameters(request))})

        return self._guarded(request, answer)

    def _metrics(self, request: Request) -> Response:
        def answer() -> Response:
            headers = {**_HEADERS, "Content-Type": prometheus.MEDIA_TYPE}
            return Response(prometheus.exposition(Asked(self._reader)), headers=headers)

        return self._guarded(request, answer)

    def _part(self, request: Request) -> Response:
        def answer() -> Response:
            given = request.path_params
            segment = whole_number("segment", given["segment"])
            name, found = trajectory_pages.part(Asked(self._reader), given["id"], segment, given["part"])
            headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
            return Response(found, media_type="application/octet-stream", headers=headers)

        return self._guarded(request, answer)

    def _guarded(self, request: Request, answer: Callable[[], Response]) -> Response:
        try:
            return answer()
        except NotFound as error:
            return self._problem(request, 404, "Not here", str(error))
        except UsageError as error:
            return self._problem(request, 400, "That can't be shown", str(error))
        except (NotReadyError, UnknownOutcome) as error:
            return self._problem(request, 503, "The database does not answer", str(error), retry=True)
        except AgentRLError as error:
            return self._problem(request, 500, "This can't be read", str(error))

    def _no_such_page(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return self._problem(request, 405, "Nothing can be changed here", "These pages only read: they answer GET.")
        return self._problem(request, error.status_code, "Not here", f"There is no page {request.url.path}.")

    def _problem(self, request: Request, status: int, title: str, said: str, retry: bool = False) -> Response:
        if wants_json(request):
            return _json({"error": said}, status)
        return self._html(Page("problem.html.jinja", title, {"said": said}, {"retry": retry}), request, [], status)

    def _html(self, page: Page, request: Request, statements: list[str], status: int = 200) -> Response:
        path, _, query = (page.address or f"{request.url.path}?{request.url.query}").partition("?")
        given = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "format"]
        text = self._templates.get_template(page.template).render(
            **page.data, **page.extra, title=page.title, statements=statements,
            json_url=f"/{path.lstrip('/')}?{urlencode([*given, ('format', 'json')])}",
        )  # fmt: skip
        return HTMLResponse(text.encode("utf-8", "replace"), status, headers=_HEADERS)


def wants_json(request: Request) -> bool:
    """``?format=json``, or a client that accepts JSON and no HTML."""
    accepts = request.headers.get("accept", "")
    return request.query_params.get("format") == "json" or ("application/json" in accepts and "text/html" not in accepts)


def _json(data: Any, status: int = 200) -> Response:
    return Response(json.dumps(plain(data)), status, media_type="application/json", headers=_HEADERS)


def _parameters(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.query_params.items() if name != "format"}


def _run(asked: Asked, request: Request) -> RunRow:
    name = request.path_params["run"]
    found = asked.reader.find_run(name)
    if found is None:
        raise NotFound("There is no run yet." if name == "latest" else f"There is no run named {name!r}.")
    return found


def _start(request: Request) -> int:
    return whole_number("from", request.query_params.get("from", "0"))


_PAGES: dict[str, Callable[[Asked, Request], Page]] = {
    "/": lambda asked, request: run_pages.runs(asked),
    "/queries": lambda asked, request: query_pages.queries(),
    "/queries/{name}": lambda asked, request: query_pages.query(asked, request.path_params["name"], _parameters(request)),
    "/runs/{run}": lambda asked, request: run_pages.run(asked, _run(asked, request)),
    "/runs/{run}/trajectories": lambda asked, request: list_pages.trajectories(
        asked, _run(asked, request), _parameters(request)
    ),
    "/runs/{run}/groups": lambda asked, request: list_pages.groups(asked, _run(asked, request)),
    "/runs/{run}/steps/{step}": lambda asked, request: run_pages.step(
        asked, _run(asked, request), whole_number("step", request.path_params["step"])
    ),
    "/groups/{group}": lambda asked, request: list_pages.group(asked, request.path_params["group"]),
    "/trajectories/{id}": lambda asked, request: trajectory_pages.trajectory(asked, request.path_params["id"], _start(request)),
    "/trajectories/{id}/tokens": lambda asked, request: trajectory_pages.token_page(
        asked, request.path_params["id"], _start(request)
    ),
    "/compare/{first}/{second}": lambda asked, request: trajectory_pages.comparison(
        asked, request.path_params["first"], request.path_params["second"]
    ),
}
"""Address -> page. Run names may be ``latest``."""
