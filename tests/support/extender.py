"""A scheduler extender of our own: a filter that Topogate does not know, and that changes its mind."""

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

KIND = "example.com/kind"  # the label by which it tells pods apart
WHY = "refused by a filter that nobody knows"
THIRD = 1 / 3
Json = dict[str, Any]


class Extender:
    """Refuses a third of the nodes to a third of the kinds of pods; what, follows from its ``round``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.round = 0
        self.refused = 0  # pods that it left no node, each time that it was asked
        self.url = ""

    def change_mind(self) -> None:
        """It refuses others from now on."""
        self.round += 1

    def refuses(self, kind: str, node: str) -> bool:
        if not kind or random.Random(f"kind {self.seed} {self.round} {kind}").random() > THIRD:
            return False
        return random.Random(f"node {self.seed} {self.round} {kind} {node}").random() < THIRD

    def refused_nodes(self, kind: str, nodes: Iterable[str]) -> list[str]:
        return [node for node in nodes if self.refuses(kind, node)]

    async def _filter(self, request: web.Request) -> web.Response:
        asked: Json = {name.lower(): value for name, value in (await request.json()).items()}
        kind = (asked["pod"]["metadata"].get("labels") or {}).get(KIND, "")
        out = self.refused_nodes(kind, asked["nodenames"])
        left = [name for name in asked["nodenames"] if name not in out]
        self.refused += bool(out) and not left
        return web.json_response({"NodeNames": left, "FailedNodes": dict.fromkeys(out, WHY), "Error": ""})


@asynccontextmanager
async def extender(seed: int) -> AsyncIterator[Extender]:
    """One that listens on a free port."""
    made, app = Extender(seed), web.Application(client_max_size=16 << 20)
    app.router.add_post("/filter", made._filter)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()
