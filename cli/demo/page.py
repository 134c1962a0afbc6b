"""The page beside the demo: of files before there is a cluster, then of the cluster, at one address.

Each is a process of its own that ends with the demo.
"""

import asyncio
import os
import re
import secrets
from contextlib import suppress
from typing import Final

from cli.web.command import KEY_VARIABLE
from localcluster.process import module_command

SECONDS: Final = 20.0
_LINK: Final = re.compile(rb"https?://\S+:(\d+)/#key=\S+")


class DemoPage:
    """Serves one source at a time. A browser that has the link open goes over from one to the next by itself."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        # By the environment: other users of the machine see a process's arguments. One key for both pages keeps the
        # link valid.
        self._environment = {**os.environ, KEY_VARIABLE: secrets.token_urlsafe(24)}

    async def show(self, *source: str) -> str:
        """Serve what options of ``topogate web`` name instead of what was shown before.

        Returns the link; "" where the page does not start.
        """
        await self.close()
        self._process = await asyncio.create_subprocess_exec(
            *module_command("cli.main", "web", "--port", str(self._port), *source),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environment,
        )
        if self._process.stdout is None:
            return ""
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                while line := await self._process.stdout.readline():
                    if (found := _LINK.search(line)) is not None:
                        # The first page takes any free port; the next one takes the same, so the open browser finds it.
                        self._port = int(found[1])
                        return found[0].decode()
        return ""

    async def close(self) -> None:
        """Serve nothing."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        # The port has to be free before the next page listens on it.
        await self._process.wait()
        self._process = None
