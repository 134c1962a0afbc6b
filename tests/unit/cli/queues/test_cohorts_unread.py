"""A cluster whose Cohorts cannot be listed: that of an earlier version, or seen with a role of it."""

import pytest
from support.queue_objects import cluster, cohort, quota

from cli.cluster import live_queues
from kube.errors import Forbidden, NotFound, ServerError
from kube.resources import CLUSTER_QUEUES, COHORTS

KEY = ("tas", "nvidia.com/gpu")


class Client:
    """Lists one queue below cohort team; of Cohorts what ``cohorts`` is, raised where it is an error."""

    def __init__(self, cohorts):
        self.cohorts = cohorts

    async def list(self, resource, **_options):
        if resource is COHORTS and isinstance(self.cohorts, Exception):
            raise self.cohorts
        return {
            CLUSTER_QUEUES: [cluster("q", quota(amount=4), cohortName="team")],
            COHORTS: self.cohorts,
        }.get(resource, [])


async def test_the_tree_is_that_of_the_cohorts_that_were_listed():
    found = await live_queues.read(Client([cohort("team", "", quota(amount=3))]))
    assert found.queues.quotas.limit("q", KEY) == 7


@pytest.mark.parametrize("error", [NotFound(404), Forbidden(403)], ids=["not served", "not allowed"])
async def test_cohorts_that_are_not_served_or_may_not_be_listed_are_flat(error):
    found = await live_queues.read(Client(error))
    assert (found.queues.quotas.limit("q", KEY), found.queues.quotas.pool("q")) == (4, "cohort team")


async def test_that_cohorts_may_not_be_listed_is_told_and_that_there_are_none_is_not():
    assert (await live_queues.read(Client(NotFound(404)))).wrong == ()
    (told,) = (await live_queues.read(Client(Forbidden(403, "Forbidden", "cohorts is forbidden")))).wrong
    assert "cohorts is forbidden. All cohorts are shown without trees: " in told


async def test_another_error_is_none_to_go_on_with():
    with pytest.raises(ServerError):
        await live_queues.read(Client(ServerError(500)))


async def test_one_that_cannot_be_read_is_named_and_the_others_count():
    odd = cohort("odd", "", quota(amount="many"))
    found = await live_queues.read(Client([odd, cohort("team", "", quota(amount=3))]))
    assert found.wrong == (
        "Cohort odd: nvidia.com/gpu: 'many' is not a quantity; expected a number such as 2, 500m, 1.5 or 64Gi",
    )
    assert found.queues.quotas.limit("q", KEY) == 7
