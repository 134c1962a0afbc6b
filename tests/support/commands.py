"""The command line beside a running controller: in a process of its own, as that one logs to the same output."""

import asyncio
import sys

PATIENCE = 120.0  # seconds


async def topogate(*arguments: object) -> str:
    """What ``topogate`` with these arguments prints; fails where it does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cli.main",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, f"topogate {' '.join(map(str, arguments))}: {err.decode()}"
    return out.decode()
