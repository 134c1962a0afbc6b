"""When a Workload counts as gone: where the API server says that there is none, and on no other answer."""

import msgspec
import pytest
from support.owned import make_job
from support.queued_world import filled
from support.world import World

from clock import SYSTEM
from crds.settings import Settings
from kube.errors import BadRequest, Conflict, Forbidden, NotFound, Unauthorized
from kube.informer import Event, EventKind
from ungater import kinds
from ungater.assembly import assemble
from ungater.controller import Controller
from ungater.metrics import ControllerMetrics
from ungater.model.job_view import id_of


class Answers:
    """In place of a client: each read and write of a Workload is answered with this error."""

    def __init__(self, error):
        self.error = error

    async def get(self, *_args, **_options):
        raise self.error

    patch = get


@pytest.fixture
async def admitted():
    """A controller, the record of a job that is admitted, and its Workload."""
    world = filled(World())
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    made = Controller(
        assemble(Settings(), None, ControllerMetrics(), None, SYSTEM, restart=print), None, ControllerMetrics(), SYSTEM
    )
    for kind, name in ((kinds.WORKLOADS, "workload"), (kinds.CLUSTER_QUEUES, "cluster_queue")):
        made.parts.informers.of(kind)._store.update(world.stores[name])
    stores = (world.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
    queues = {f"{kind}s": world.stores[kind].values() for kind in ("namespace", "cluster_queue", "local_queue")}
    for _ in made.parts.cache.load(*stores, **queues):
        pass
    record = made.parts.cache.entries[id_of(job)]
    return made, record, world.stores["workload"][record.key]


def later(workload):
    """A change of it that happened before its end, of which a watch that lags tells now."""
    meta = msgspec.structs.replace(workload.metadata, resource_version="99")
    return Event(EventKind.MODIFIED, "ns/train", workload, msgspec.structs.replace(workload, metadata=meta))


@pytest.mark.parametrize("error", [Unauthorized(401), Forbidden(403), BadRequest(400)])
async def test_a_workload_that_may_not_be_read_is_not_taken_for_deleted(admitted, error):
    """A role that is being changed, or credentials that expire: the Workload is there all the same."""
    controller, record, stored = admitted
    controller.parts.writer._client = Answers(error)
    seen = record.observed
    await controller.reconciler._refresh(record)
    assert (record.observed, record.gone) == (seen, "")
    assert record.failures == 1, "it is looked at again later"
    controller.parts.cache.workloads.on_workload(later(stored))
    assert record.observed.resource_version == "99"


async def test_a_workload_that_is_not_there_is_gone_whatever_a_late_watch_says(admitted):
    controller, record, stored = admitted
    controller.parts.writer._client = Answers(NotFound(404))
    await controller.reconciler._refresh(record)
    controller.parts.cache.workloads.on_workload(later(stored))
    assert (record.observed, record.gone) == (None, stored.metadata.uid)


async def test_a_workload_that_is_not_there_when_an_admission_is_stored_does_not_come_back(admitted):
    """The store has it still, and a late watch tells of it: another write of an admission would be lost on it."""
    controller, record, stored = admitted

    async def write():
        raise NotFound(404)

    record.writes.begin_write()
    await controller.parts.scheduler._writes.store(record, record.grant, write, stored=lambda: None)
    assert record.observed is None
    controller.parts.cache.workloads.on_workload(later(stored))
    assert (record.observed, record.gone) == (None, stored.metadata.uid)


async def test_a_workload_that_another_writer_changed_stays_when_an_admission_is_not_stored(admitted):
    controller, record, _ = admitted
    seen = record.observed

    async def write():
        raise Conflict(409)

    record.writes.begin_write()
    await controller.parts.scheduler._writes.store(record, record.grant, write, stored=lambda: None)
    assert (record.observed, record.gone) == (seen, "")
