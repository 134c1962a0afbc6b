"""A real control plane for the tests that are marked ``cluster``.

``cluster``        one for the whole session (with pytest-xdist one for each worker); never stop its components
``fresh_cluster``  one for this test alone: kill, stop, compact and break it as you like
``client``         ``kube.client.Client`` of ``cluster``, as administrator
``namespace``      name of a new namespace in which pods can be created at once; deleted afterwards
``nodes``          factory of KWOK nodes in ``cluster``: ``await nodes(blocks=2, racks=2, hosts=2)``; deleted afterwards
``as_account``     factory: ``await as_account(namespace, "name")`` is a Client with a token of that service account
``kubectl``        runs kubectl against ``cluster`` and returns what it printed

``make_client(kubeconfig)`` is a factory for clients of other clusters or users. All fail, and never skip, where the
control plane cannot start.
"""

import asyncio
import gc
import itertools
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import structlog

from kube.client import Client
from kube.errors import NotFound
from kube.resources import NAMESPACES, NODES, SERVICE_ACCOUNTS
from localcluster import Fleet, LocalCluster, Options, add_nodes, wait_ready

WAIT_SECONDS = 90
UNIT = Path(__file__).parent / "unit"
_numbers = itertools.count(1)


def pytest_collection() -> None:
    """Nothing that collecting makes is garbage: looking through it all again and again was half of what it costs."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is there by now stays: a test that collects garbage need not go through 10,000 tests for it."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """What a file of tests leaves stays too."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``TOPOGATE_RERUNS=1`` (continuous integration) tries a failed test of a control plane once more, and names it.

    A machine that stands still for a minute fails a test that waits; a defect fails it twice. Unit tests wait for none.
    """
    if reruns := int(os.environ.get("TOPOGATE_RERUNS", "0")):
        for item in items:
            if UNIT not in item.path.parents:
                item.add_marker(pytest.mark.flaky(reruns=reruns))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test that was tried again failed of the first time."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_line(f"RERUN {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-2000:])


@pytest.fixture(autouse=True)
def _logs_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that runs inside of a test has logs written to its own output, which is closed when it ends."""
    before, configure = structlog.get_config(), structlog.configure
    monkeypatch.setattr(structlog, "configure", lambda **to: configure(**{**to, "cache_logger_on_first_use": False}))
    yield
    configure(**before)
    for handler in tuple(logging.getLogger().handlers):
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    # configmaps are served from etcd: after compact_etcd() an old resourceVersion of theirs is 410 at once
    with LocalCluster(options=Options(uncached=["configmaps"])) as running:
        yield running


@pytest.fixture
def fresh_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(options=Options(uncached=["configmaps"])) as running:
        yield running


@pytest.fixture
async def make_client() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    async with AsyncExitStack() as stack:

        async def make(kubeconfig: Path | str, **arguments) -> Client:
            return await stack.enter_async_context(await Client.connect(str(kubeconfig), **arguments))

        yield make


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with await Client.connect(str(cluster.kubeconfig)) as connected:
        yield connected


@pytest.fixture
async def namespace(client: Client) -> AsyncIterator[str]:
    name = f"test-{next(_numbers)}"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await _until(lambda: _exists(client, SERVICE_ACCOUNTS, "default", name), f"service account of namespace {name}")
    yield name
    await client.delete(NAMESPACES, name)


@pytest.fixture
async def as_account(cluster: LocalCluster, client: Client, make_client) -> Callable[..., Awaitable[Client]]:
    async def make(namespace: str, account: str) -> Client:
        token = await client.request_token(account, namespace, 3600)
        return await make_client(cluster.token_kubeconfig(token, f"{namespace}-{account}"))

    return make


@pytest.fixture
async def nodes(client: Client) -> AsyncIterator[Callable[..., Awaitable[list[str]]]]:
    made: set[str] = set()

    async def make(*, ready: bool = True, **fleet) -> list[str]:
        asked = Fleet(**fleet)
        made.update(asked.node_names())
        await add_nodes(client, asked)
        if ready:
            await wait_ready(client, asked.node_names(), timeout=WAIT_SECONDS)
        return asked.node_names()

    yield make
    for name in made:
        with suppress(NotFound):
            await client.delete(NODES, name)


@pytest.fixture
def kubectl(cluster: LocalCluster) -> Callable[..., str]:
    def run(*arguments: str, stdin: str | None = None) -> str:
        command = [cluster.kubectl, "--kubeconfig", cluster.kubeconfig, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    return run


async def _exists(client: Client, *address) -> bool:
    with suppress(NotFound):
        await client.get(*address)
        return True
    return False


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"waited {WAIT_SECONDS} s in vain for {what}")
