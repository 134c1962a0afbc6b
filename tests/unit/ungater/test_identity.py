"""The controller finds out at its start whether the API server takes it for the ungater."""

import asyncio
from types import SimpleNamespace

import pytest

from clock import SYSTEM
from crds.kinds.workload import Workload
from crds.settings import Settings
from kube.errors import ConfigError, ConnectionFailed, Forbidden, NotFound
from kube.resources import SELF_SUBJECT_REVIEWS, WORKLOADS
from ungater.identity import check_identity, trial
from ungater.process import Process

BY_POLICY = (
    "workloads.topogate.dev \"topogate-ungater-trial\" is forbidden: ValidatingAdmissionPolicy 'topogate-workloads' "
    "with binding 'topogate-workloads' denied request: Workloads are made by Topogate alone"
)
BY_RIGHTS = 'workloads.topogate.dev is forbidden: User "jane" cannot create resource "workloads"'


class Client:
    """An API server that answers the trial with an error, or takes it; ``user``: whom it sees."""

    transport = SimpleNamespace(subscribe=lambda _: None)

    def __init__(self, error=None, user="kubernetes-admin"):
        self.error, self.user, self.asked = error, user, []

    async def create(self, resource, body, namespace=None, *, dry_run=False):
        self.asked.append((resource, namespace, dry_run))
        if resource == SELF_SUBJECT_REVIEWS:
            if self.user is None:
                raise Forbidden(403, "Forbidden", "no")
            return {**body, "status": {"userInfo": {"username": self.user}}}
        if self.error is not None:
            raise self.error
        return body


@pytest.mark.parametrize(("user", "said"), [("kubernetes-admin", "runs as kubernetes-admin,"), (None, "another user")])
async def test_one_whom_the_policies_do_not_take_for_the_ungater_says_who_it_is_and_who_is_expected(user, said):
    with pytest.raises(ConfigError) as told:
        await check_identity(Client(Forbidden(403, "Forbidden", BY_POLICY), user), "gang")
    assert said in str(told.value)
    assert "system:serviceaccount:gang:topogate-ungater" in str(told.value)
    assert "kubectl -n gang create token topogate-ungater" in str(told.value)


async def test_one_that_is_the_ungater_asks_once_and_stores_nothing():
    """So does any user where no policies are installed: nothing refuses it."""
    client = Client()
    await check_identity(client, "gang")
    assert client.asked == [(WORKLOADS, "gang", True)]


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", BY_RIGHTS),  # RBAC tells of a new role late
        Forbidden(403, "Forbidden", 'admission webhook "other" denied the request: no'),
        NotFound(404, "NotFound", "the CRD comes later"),
        ConnectionFailed("restarts"),
    ],
)
async def test_what_the_policies_do_not_say_stops_nobody(error):
    await check_identity(Client(error), "gang")


async def test_a_process_that_is_not_the_ungater_ends_before_it_asks_for_the_lease():
    client = Client(Forbidden(403, "Forbidden", BY_POLICY))
    async with asyncio.timeout(10):
        with pytest.raises(ConfigError, match="runs as kubernetes-admin"):
            await Process(Settings(), client, SYSTEM).run()


def test_the_trial_is_a_workload_as_the_crd_has_it():
    """Else the API server would refuse it for its form, and its policies would not be asked."""
    assert Workload.model_validate(trial("gang")).spec.active is False
