"""What a viewer may see is what the API server says of his token, and stays for a while when that is away."""

import pytest

from kube.errors import KubeTimeout
from web.sight import Sight
from web.viewers.rights import EVERYTHING, NO_TOKEN, REMEMBERED, KeyRights, ReviewedRights


class Reviews:
    """An API server that knows tokens and what their users may list: (resource, namespace)."""

    def __init__(self, users):
        self.users, self.away, self.calls = users, False, []

    async def create(self, resource, body, **_):
        if self.away:
            raise KubeTimeout("it is away")
        spec = body["spec"]
        self.calls.append((resource.kind, spec))
        if resource.kind == "TokenReview":
            known = spec["token"] in self.users
            return {"status": {"authenticated": known, "user": {"username": spec["token"], "groups": ["g"]}}}
        asked = spec["resourceAttributes"]
        assert spec["groups"] == ["g"]
        assert asked["verb"] == "list"
        allowed = self.users[spec["user"]]
        return {"status": {"allowed": (asked["resource"], asked["namespace"]) in allowed}}


def everywhere(*resources):
    return {(one, "") for one in resources}


def inside(namespace, *resources):
    return {(one, namespace) for one in resources}


@pytest.fixture
def now():
    return [0.0]


def made(now, **users):
    reviews = Reviews(users)
    return ReviewedRights(reviews, lambda: now[0]), reviews


async def test_who_may_list_all_sees_all(now):
    rights, _ = made(now, admin=everywhere("nodes", "pods", "workloads", "clusterqueues"))
    assert (await rights.sight_of_viewer("Bearer admin", ["a"])).sight == EVERYTHING


async def test_a_namespace_is_seen_by_who_may_list_both_pods_and_workloads_there(now):
    may = inside("a", "pods", "workloads") | inside("b", "pods") | inside("c", "workloads") | everywhere("pods")
    rights, _ = made(now, tenant=may)
    assert (await rights.sight_of_viewer("Bearer tenant", ["a", "b", "c"])).sight == Sight(
        False, False, frozenset({"a"})
    )


async def test_who_may_list_nothing_sees_nothing(now):
    rights, _ = made(now, nobody=set())
    seen = await rights.sight_of_viewer("Bearer nobody", ["a"])
    assert (seen.status, seen.sight.nothing) == (200, True)


@pytest.mark.parametrize("header", [None, "", "Basic abc", "Bearer", "Bearer  ", "Bearer " + "x" * 20_000, "Bearer ü"])
async def test_without_a_token_nobody_is_asked(now, header):
    rights, reviews = made(now)
    assert await rights.sight_of_viewer(header, []) == NO_TOKEN
    assert reviews.calls == []


async def test_events_of_a_namespace_are_seen_by_who_may_list_them_there(now):
    rights, reviews = made(now, tenant=inside("a", "pods", "workloads", "events") | inside("b", "pods", "workloads"))
    assert await rights.no_events("Bearer tenant", "a")  # he was not let in yet
    await rights.sight_of_viewer("Bearer tenant", ["a", "b"])
    assert await rights.no_events("Bearer tenant", "a") == ""
    assert await rights.no_events("Bearer tenant", "b") == "you may not list events in namespace b"
    many = len(reviews.calls)
    assert await rights.no_events("Bearer tenant", "a") == ""
    assert len(reviews.calls) == many
    reviews.users["tenant"] = set()
    now[0] = 61
    assert await rights.no_events("Bearer tenant", "a")
    now[0], reviews.away = 200, True
    assert "cannot be asked" in await rights.no_events("Bearer tenant", "a")
    assert await rights.no_events("Bearer forged", "a")


async def test_rights_that_are_taken_away_count_no_longer_than_a_minute(now):
    rights, reviews = made(now, admin=everywhere("nodes", "pods", "workloads", "clusterqueues"))
    await rights.sight_of_viewer("Bearer admin", [])
    reviews.users["admin"] = set()
    now[0] = 59
    assert (await rights.sight_of_viewer("Bearer admin", [])).sight == EVERYTHING
    now[0] = 61
    assert (await rights.sight_of_viewer("Bearer admin", [])).sight.nothing


async def test_where_the_api_server_is_away_a_picture_stays_for_five_minutes_and_nothing_new_is_shown(now):
    rights, reviews = made(now, admin=everywhere("nodes"), other=everywhere("nodes"))
    await rights.sight_of_viewer("Bearer admin", [])
    reviews.away = True
    now[0] = 100
    assert (await rights.sight_of_viewer("Bearer admin", [])).sight.hosts
    assert (await rights.sight_of_viewer("Bearer other", [])).status == 503
    now[0] = 301
    assert (await rights.sight_of_viewer("Bearer admin", [])).status == 503
    reviews.away = False
    assert (await rights.sight_of_viewer("Bearer admin", [])).sight.hosts


async def test_strangers_cost_the_api_server_a_few_calls_a_second(now):
    rights, reviews = made(now)
    found = [(await rights.sight_of_viewer(f"Bearer no{number}", [])).status for number in range(200)]
    assert found.count(401) == 10
    assert found.count(429) == 190
    assert len(reviews.calls) == 10
    now[0] = 1.0
    assert (await rights.sight_of_viewer("Bearer no1", [])).status == 401  # remembered
    assert len(reviews.calls) == 10


async def test_strangers_who_are_remembered_cost_no_more_than_others(now):
    rights, reviews = made(now)
    for number in range(200):  # one after the other, as fast as they get turns
        now[0] = number / 5
        assert (await rights.sight_of_viewer(f"Bearer no{number}", [])).status == 401
    now[0], before = 1000.0, len(reviews.calls)
    found = [(await rights.sight_of_viewer(f"Bearer no{number}", [])).status for number in range(200)]
    assert (found.count(401), found.count(429), len(reviews.calls) - before) == (10, 190, 10)


async def test_strangers_make_no_viewer_forgotten(now):
    rights, reviews = made(now, admin=everywhere("nodes", "pods", "workloads", "clusterqueues"))
    await rights.sight_of_viewer("Bearer admin", [])
    for number in range(3 * REMEMBERED):
        now[0] += 0.1 if number % 4 else 0.0
        await rights.sight_of_viewer(f"Bearer no{number}", [])
    asked = len(reviews.calls)
    assert asked > REMEMBERED
    now[0] = 59.0
    assert (await rights.sight_of_viewer("Bearer admin", [])).sight == EVERYTHING
    assert len(reviews.calls) == asked


async def test_a_token_that_counts_no_more_is_a_strangers(now):
    rights, reviews = made(now, admin=everywhere("nodes"))
    assert (await rights.sight_of_viewer("Bearer admin", [])).status == 200
    del reviews.users["admin"]
    now[0] = 61.0
    assert [(await rights.sight_of_viewer("Bearer admin", [])).status for _ in range(2)] == [401, 401]
    reviews.users["admin"] = everywhere("nodes")
    now[0] = 72.0
    assert (await rights.sight_of_viewer("Bearer admin", [])).status == 200


async def test_one_key_opens_everything_and_no_other_does():
    rights = KeyRights("the-key")
    assert (await rights.sight_of_viewer("Bearer the-key", [])).sight == EVERYTHING
    assert (await rights.sight_of_viewer("Bearer the-kez", [])).status == 401
    assert (await rights.sight_of_viewer(None, [])).status == 401
