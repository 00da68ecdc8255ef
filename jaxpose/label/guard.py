"""What every request of a page passes: only this machine, and only browsers that know the token.

The token in the printed address is swapped for a cookie.
"""

import asyncio
import hmac
import importlib.resources
import json
import secrets
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

# The names under which a browser reaches this machine; a page of another host that resolves to it has another name.
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_MOST_BODY_BYTES, _BODY_WAIT_S = 65_536, 10.0
_MOST_DIGITS = 15


class Tokens:
    """The secrets of a server.

    Attributes:
      printed: opens the page any number of times.
      once: opens it once: other users of the machine can read it in the arguments of the browser that is started.
    """

    def __init__(self) -> None:
        self.printed, self.once = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.cookie = secrets.token_urlsafe(32)

    def opens(self, token: str) -> bool:
        """Returns whether a token in an address opens the page."""
        if self.once and hmac.compare_digest(token.encode(), self.once.encode()):
            self.once = ""
            return True
        return hmac.compare_digest(token.encode(), self.printed.encode())

    def is_cookie(self, value: str) -> bool:
        """Returns whether a cookie is that of this server."""
        return hmac.compare_digest(value.encode(), self.cookie.encode())


class PageFiles:
    """The files of a page, from the package."""

    def __init__(self, names: Sequence[str]):
        package = importlib.resources.files("jaxpose.label")
        self._files = {name: (package / name).read_bytes() for name in names}

    def answer(self, name: str) -> Response:
        """Returns a file; raises HTTPException for another name."""
        if name not in self._files:
            raise HTTPException(404, "there is no such file")
        return Response(self._files[name], media_type=_TYPES[name.rpartition(".")[2]])


async def refuse(_: Request, error: Exception) -> Response:
    """Answers a request that was refused with the reason, as JSON."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def number_in(text: str) -> int:
    """Returns the number that a text of digits is; -1 for any other text, and for more digits than are needed."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else -1


async def read_json(request: Request) -> dict[str, Any]:
    """Returns the body of a request, which must be a small JSON object that comes soon."""
    if request.headers.get("content-type") != "application/json":
        raise HTTPException(415, "the body must be JSON")
    if not 0 <= number_in(request.headers.get("content-length", "0")) <= _MOST_BODY_BYTES:
        raise HTTPException(413, "the body is too large")
    body = bytearray()

    async def receive() -> None:
        async for part in request.stream():
            body.extend(part)
            if len(body) > _MOST_BODY_BYTES:
                raise HTTPException(413, "the body is too large")

    try:
        await asyncio.wait_for(receive(), _BODY_WAIT_S)
        given = json.loads(body)
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, "the body did not arrive") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(given, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return given


class Guard:
    """Passes only requests of browsers on this machine that have the cookie, or the token for it.

    A page of another site cannot read the cookie, which is SameSite, nor name its own host (DNS rebinding), nor change
    anything: a request that writes must come from the page itself (Origin).
    """

    def __init__(self, app: Starlette, tokens: Tokens):
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        refusal, cookie = self._judge(request)
        headers = dict(_HEADERS)
        if cookie:
            headers["Set-Cookie"] = f"{_cookie_name(request)}={cookie}; Path=/; HttpOnly; SameSite=Strict"

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send(message)

        answer = JSONResponse({"error": refusal}, 403) if refusal else self._app
        await answer(scope, receive, with_headers)

    def _judge(self, request: Request) -> tuple[str, str]:
        """Returns why a request is refused ("" if it is not), and the cookie to set."""
        host = request.headers.get("host", "")
        if host.rpartition(":")[0] not in _HOSTS and host not in _HOSTS:
            return "this server answers only requests from its own machine, as 127.0.0.1 or localhost", ""
        origin = request.headers.get("origin")
        is_writing = request.method not in ("GET", "HEAD")
        if origin != f"http://{host}" and (is_writing or origin is not None):
            return "another page may not do this", ""
        token = request.query_params.get("token")
        if token is not None and request.url.path == "/" and not is_writing and self._tokens.opens(token):
            return "", self._tokens.cookie
        if not self._tokens.is_cookie(request.cookies.get(_cookie_name(request), "")):
            return "open the address that jaxpose label printed, with its token", ""
        return "", ""


def _cookie_name(request: Request) -> str:
    """Returns the name of the cookie: browsers share cookies between the ports of a host."""
    return f"jaxpose_label_{request.headers.get('host', '').rpartition(':')[2]}"
