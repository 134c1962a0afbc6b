"""The page of the demo's cluster, beside the demo: a process of its own that ends with it."""

import asyncio
import re
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

SECONDS: Final = 20.0
_LINK: Final = re.compile(rb"https?://\S+#key=\S+")


async def opened(stack: AsyncExitStack, kubeconfig: Path) -> str:
    """The link to it, for as long as the stack is open; "" where it does not start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", "web", "--port", "0", "--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    stack.push_async_callback(_end, process)
    if process.stdout is None:
        return ""
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while line := await process.stdout.readline():
                if (found := _LINK.search(line)) is not None:
                    return found[0].decode()
    return ""


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()
