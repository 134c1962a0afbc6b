"""Attacks share one siege a file; after each of them what must hold is looked at (`support.siege`).

A file says by ``SETTINGS`` what the controller is set to, and by ``WEBHOOK`` whether the webhook stands before it;
``WHOLE = False`` says that nothing is made there that could be held, so that a look at who runs and answers does.
"""

import itertools

import pytest_asyncio
from support.siege import besieged

from kube.client import Client

_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(cluster, request):
    settings = getattr(request.module, "SETTINGS", {})
    webhook = getattr(request.module, "WEBHOOK", False)
    async with await Client.connect(str(cluster.kubeconfig)) as admin:
        name = f"siege-{next(_numbers)}"
        async with besieged(cluster, admin, name, settings, webhook=webhook) as made:
            yield made


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_gets_through(siege, request):
    yield
    if not getattr(request.module, "WHOLE", True):
        await siege.untouched()
        await siege.answers()
        await siege.clean()
        return
    try:
        await siege.stands()
    finally:
        await siege.over()
