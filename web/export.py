"""The page with all that it shows as one HTML file, which opens without a server and asks nobody anything.

The data stand in the file as JSON that no browser runs; script and style are allowed by their hashes alone.
"""

import base64
import hashlib
from importlib.resources import files
from typing import Any, Final

import msgspec

from web import inside, picture
from web.board import Board
from web.film import Film
from web.hub import Hub
from web.questions import QuestionError, Questions
from web.server import Inside
from web.sight import EVERYTHING

MOST_HOSTS: Final = 20_000  # with their insides
_encode = msgspec.json.Encoder().encode


def page(hub: Hub, questions: Questions, known: Inside) -> bytes:
    """The file of a cluster at one time."""
    board, history = hub.board, hub.history.columns()
    # The file leaves the cluster's rights behind: it has what the process may read, and shows it to everybody.
    whole = picture.whole_picture(board, EVERYTHING, version=0, epoch="file", now=hub.now(), cluster=hub.cluster)
    made: dict[str, Any] = {
        "picture": msgspec.Raw(whole),
        "workloads": {key: inside.workload(board, key) for key in board.all_holders()},
        "hosts": _hosts(board, known),
        # One sample makes no curve.
        "history": history if len(history["at"]) > 1 else None,
        "queues": None,
    }
    try:
        made["queues"] = questions.queues(EVERYTHING)
    except QuestionError:
        made["queues"] = None
    return html(_encode(made))


def moving(film: Film, first: float, queues: dict[str, Any], history: dict[str, Any]) -> bytes:
    """The file of a film, which is shown from ``first`` on. ``queues``: their quotas, which stay."""
    made: dict[str, Any] = {
        "picture": msgspec.Raw(film.whole),
        "workloads": film.workloads,
        "hosts": _hosts(film.board, lambda _: (None, None)),
        "history": history if len(history["at"]) > 1 else None,
        "queues": queues,
        "film": film.moments_from(first),
    }
    return html(_encode(made))


def _hosts(board: Board, known: Inside) -> dict[str, Any]:
    if len(board.hosts) > MOST_HOSTS:
        return {}
    shown = [name for grove in board.groves() for name in grove.hosts]
    return {name: inside.machine(board, EVERYTHING, name, *known(name)) for name in shown}


def html(data: bytes) -> bytes:
    """The file of these data."""
    static = files("web") / "static"
    script, style = ((static / name).read_bytes() for name in ("page.js", "page.css"))
    icon = base64.b64encode((static / "icon.svg").read_bytes())
    shell = (static / "index.html").read_bytes()
    policy = (
        # No connect-src: even a script that slipped in could not call anybody.
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    ).encode()
    head = b'<meta http-equiv="Content-Security-Policy" content="' + policy + b'">\n'
    # The policy has to come before the elements it rules; a browser ignores it for what stands above.
    shell = shell.replace(b'<meta charset="utf-8">', b'<meta charset="utf-8">\n' + head)
    shell = shell.replace(b'<link rel="stylesheet" href="page.css">', b"<style>" + style + b"</style>")
    shell = shell.replace(b'href="icon.svg"', b'href="data:image/svg+xml;base64,' + icon + b'"')
    packed = data.replace(b"<", b"\\u003c").replace(b">", b"\\u003e")  # no name ends the element that it stands in
    block = b'<script type="application/json" id="data">' + packed + b"</script>\n"
    # An inline script cannot be deferred, so it moves to the end of the body, below the data that it reads.
    return shell.replace(b'<script src="page.js" defer></script>', b"").replace(
        b"</body>", block + b"<script>" + script + b"</script>\n</body>"
    )


def _hash(text: bytes) -> str:
    return base64.b64encode(hashlib.sha256(text).digest()).decode()
