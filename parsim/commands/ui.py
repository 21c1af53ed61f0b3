"""The command `parsim ui`: the planner in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from parsim.terminal import Debug, remark, say


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(ui)


def ui(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port on 127.0.0.1; default: 7180, or a free one.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address without opening a browser.")] = False,
    debug: Debug = False,
) -> None:
    """Plan a training in the browser: change a setting, see at once whether it fits and how fast it is."""
    from parsim.ui.serve import serve

    def opened(address: str) -> None:
        say(f"Planner: {address}\nOnly this machine can open it. Ctrl-C ends it.")
        if not no_browser:
            import webbrowser

            webbrowser.open(address)

    serve(port, opened, lambda address: remark(f"For another browser: {address}"))
