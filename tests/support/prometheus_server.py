"""A small server on loopback that answers `/api/v1/query_range` as Prometheus does, and what goes wrong with one."""

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web


class PrometheusServer:
    """``series``: by a word of the query, the series that answer it: (labels, function of time -> text of a value).

    ``asked``: the parameters of every query. ``answers``: (status, body) of each query instead, where it is set;
    ``silent``: seconds before an answer; ``moved``: where every query is sent on to.
    """

    def __init__(self):
        self.series, self.asked, self.answers, self.silent, self.moved = {}, [], None, 0.0, ""

    async def answer(self, request):
        self.asked.append(dict(request.query))
        await asyncio.sleep(self.silent)
        if self.moved:
            raise web.HTTPFound(self.moved)
        if self.answers is not None:
            status, body = self.answers
            return web.Response(status=status, body=body, content_type="application/json")
        start, end, step = (int(request.query[name]) for name in ("start", "end", "step"))
        found = next((made for word, made in self.series.items() if word in request.query["query"]), ())
        result = [
            {
                "metric": labels,
                "values": [[at, text] for at in range(start, end + 1, step) if (text := value(at)) is not None],
            }
            for labels, value in found
        ]
        made = {"status": "success", "data": {"resultType": "matrix", "result": result}, "warnings": [], "infos": []}
        return web.Response(text=json.dumps(made), content_type="application/json")


@asynccontextmanager
async def prometheus_server(tls=None):
    """One; its address is ``url``, under a path as behind a proxy. ``tls``: the context of an https server."""
    made, app = PrometheusServer(), web.Application()
    app.router.add_get("/prom/api/v1/query_range", made.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}/prom"
    try:
        yield made
    finally:
        await runner.cleanup()
