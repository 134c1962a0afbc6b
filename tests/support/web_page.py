"""`topogate web` as a process beside a test, and a browser in front of it."""

import asyncio
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

AXE = Path(__file__).parents[2] / "web" / "page" / "node_modules" / "axe-core" / "axe.min.js"
SECONDS = 120.0


@asynccontextmanager
async def serving(*options, port=0):
    """The link that opens it. Its process is ``pid``; it is ended with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", "web", "--port", str(port), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        seen = ""
        async with asyncio.timeout(SECONDS):
            while not (found := re.search(r"https?://\S+#key=\S+|\"port\": ?(\d+), ?\"names\"", seen)):
                line = (await process.stdout.readline()).decode()
                assert line, seen
                seen += line
        reading = asyncio.create_task(process.stdout.read())
        yield process, found[0] if found[1] is None else f"https://localhost:{found[1]}/"
        reading.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def violations(tab):
    """What axe finds wrong, in a line each; nothing where ``npm ci`` did not bring it (.ci/run does)."""
    if not AXE.exists():
        return []
    await tab.js(AXE.read_text() + ";true")
    found = await tab.js("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found]
