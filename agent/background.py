"""Calls that block, away from the event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call that may block for ever (a driver, a mount): its thread keeps neither the loop nor the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        # The caller was cancelled meanwhile.
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type] # None only where T is None

    def run() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 -- it is raised where the call is awaited
            failed = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(finish, result, failed)

    # Not in the loop's pool: calls that hang would fill it, and its threads keep a process from ending.
    threading.Thread(target=run, daemon=True).start()
    return await future
