"""Who may ask what: the checks of a request, in their order, before anything of it is read further, and the headers of every answer.

A page of another site in the user's browser can send requests here: it has another Origin, or, by a name that points to this machine
(DNS rebinding), another Host; and it never has the token.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request

LARGEST_BODY = 256 * 1024
"""[B]"""
PATIENCE = 5.0
"""within which a body arrives [s]"""
TOKEN = "x-parsim-token"  # noqa: S105 - the name of a header
_DIGITS = 20
HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
REPORT = f"{NOTHING}; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; sandbox allow-scripts allow-downloads"
"""of a report, which stands in an origin of its own: its script cannot ask the server anything"""


def page_policy(nonce: str) -> str:
    """Of the page: its own script and style, requests to its own server, nothing else."""
    return f"{NOTHING}; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:"


class Refused(Exception):  # noqa: N818 - an answer
    """A request that is not looked at further."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass
class Guard:
    """The secrets of one server, and what it lets through."""

    port: int
    announce: Callable[[str], None] = lambda _: None
    """is told the next address when one was used"""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _key: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a browser on this machine calls the server."""
        return f"127.0.0.1:{self.port}", f"localhost:{self.port}"

    @property
    def address(self) -> str:
        """Where the page is; works once."""
        return f"http://{self.hosts[0]}/?key={self._key}"

    def admitted(self, key: str | None) -> bool:
        """Whether a key is the one that was printed; it is used up then, and the next one is announced."""
        if key is None or not secrets.compare_digest(key.encode(), self._key.encode()):
            return False
        self._key = secrets.token_urlsafe(24)
        self.announce(self.address)
        return True

    def check(self, request: Request) -> None:
        """Host, method, Origin, token. Raises `Refused`."""
        host = request.headers.getlist("host")
        if len(host) != 1 or host[0] not in self.hosts:
            raise Refused(421, "this server is for this machine only")
        asks = request.url.path.startswith("/api/")
        if request.method != ("POST" if asks else "GET"):
            raise Refused(405, "method")
        origins = request.headers.getlist("origin")
        if (asks and not origins) or any(origin != f"http://{host[0]}" for origin in origins) or len(origins) > 1:
            raise Refused(403, "origin")
        token = request.headers.get(TOKEN, "")
        if asks and not secrets.compare_digest(token.encode(), self.token.encode()):
            raise Refused(401, "token")

    async def document(self, request: Request, shape: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
        """The body, which is a JSON object with exactly the keys of `shape`. Raises `Refused`."""
        length = request.headers.get("content-length", "")
        if not length.isascii() or not length.isdecimal() or len(length) > _DIGITS:
            raise Refused(411, "length")
        if int(length) > LARGEST_BODY:
            raise Refused(413, f"at most {LARGEST_BODY:,} bytes")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refused(415, "type")
        try:
            raw = await asyncio.wait_for(request.body(), PATIENCE)
        except TimeoutError:
            raise Refused(408, "too slow") from None
        except ClientDisconnect:
            raise Refused(400, "gone") from None
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            raise Refused(400, "no JSON") from None
        if not isinstance(document, dict) or set(document) != set(shape):
            raise Refused(400, "keys")
        for key, kind in shape.items():
            if not isinstance(document[key], kind) or isinstance(document[key], bool):
                raise Refused(400, key)
        return document
