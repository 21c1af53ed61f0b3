"""Listening: one address on this machine, until somebody ends it."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from parsim.errors import Finding, OutputError
from parsim.ui.guard import Guard
from parsim.ui.server import application

PORT = 7180
HOST = "127.0.0.1"
_CONNECTIONS = 64


def listening(port: int | None) -> socket.socket:
    """A socket on the port; without one on the usual port, or on any where that is taken.

    Raises:
        OutputError: the port is taken.
    """
    for tried in (port,) if port is not None else (PORT, 0):
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, tried))
        except OSError as error:
            one.close()
            if port is not None:
                raise OutputError(Finding(f"cannot listen: {error.strerror}", "--port", port, "name another port")) from None
        else:
            return one
    raise OutputError(Finding("no port is free", "--port", port))


def serve(port: int | None, opened: Callable[[str], None], again: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted; `opened` gets its address, `again` the next one whenever one was used.

    Raises:
        OutputError: the port is taken.
    """
    with listening(port) as one:
        guard = Guard(one.getsockname()[1], again)
        opened(guard.address)
        server_of(application(guard)[0]).run(sockets=[one])


def server_of(app: ASGIApp) -> uvicorn.Server:
    """What runs the application."""
    return uvicorn.Server(
        uvicorn.Config(
            app, log_level="error", access_log=False, server_header=False, lifespan="on", limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=5, timeout_graceful_shutdown=1,
        )
    )  # fmt: skip
