"""The browser of the person at this terminal, where there is one."""

import os
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Annotated

import typer

Open = Annotated[
    bool | None,
    typer.Option(
        "--open/--no-open", help="Open the page in your browser. Default: where this is a terminal on a desktop."
    ),
]
Opener = Callable[[str], bool]


def wanted(asked: bool | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to open a page: what was asked, else whether a person on a desktop sees this terminal."""
    if asked is not None:
        return asked
    # Over SSH, as a rule, none of these is set: a browser would open on the other machine, or in the terminal.
    desktop = sys.platform == "darwin" or any(map(environment.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")))
    return desktop and sys.stdout.isatty()


def show(address: str, opener: Opener = webbrowser.open) -> Callable[[], None]:
    """Open an address or file; what is returned removes what that left behind, once nobody needs it.

    A browser's arguments are seen by all users of a machine, and a link with a key is for one. So the browser gets a
    file that only its owner reads, and that leads on. No browser is no error: the address is on the terminal.
    """
    # The key of a page stands behind the #, which no browser sends to a server.
    if "#" not in address:
        opener(address)
        return lambda: None
    folder = Path(tempfile.mkdtemp(prefix="topogate-"))  # for its owner alone
    leads_on = folder / "open.html"
    leads_on.write_text(f'<meta http-equiv="refresh" content="0;url={escape(address)}">', encoding="utf-8")
    opener(leads_on.as_uri())
    return lambda: shutil.rmtree(folder, ignore_errors=True)
