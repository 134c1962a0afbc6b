"""What Kueue's queues were before they moved is kept, however many there are."""

import asyncio

import pytest
from support.move_store import MoveStore, StoreClient
from support.move_world import make_world

from cli.migrate.moves import backup
from cli.migrate.moves.backup import Backups, QueueBackup, read_backups, write_backups
from cli.output import Failure
from kube.errors import Conflict, Invalid
from kube.resources import CONFIG_MAPS


def kept(size, uid="u"):
    return QueueBackup(uid, {"text": "x" * size})


def names_of(store):
    return [one["metadata"]["name"] for one in store.within(CONFIG_MAPS)]


def test_three_thousand_queues_are_kept_in_several_config_maps_and_go_one_by_one():
    store = MoveStore()
    client, every = StoreClient(store), {f"queue-{at}": kept(1000) for at in range(3000)}

    async def whole():
        await write_backups(client, Backups("t"), every)
        first = await read_backups(client, "t")
        gone = dict.fromkeys(list(every)[10:])
        await write_backups(client, first, gone)
        # There is room in the first one again.
        second = await read_backups(client, "t")
        await write_backups(client, second, {"late": kept(1000), "queue-3": kept(7, "another")})
        return first, await read_backups(client, "t")

    first, last = asyncio.run(whole())
    assert first.queues == every
    assert names_of(store) == [f"topogate-migration{end}" for end in ("", "-2", "-3", "-4")]
    assert set(last.queues) == {f"queue-{at}" for at in range(10)} | {"late"}
    assert last.queues["queue-3"] == kept(7, "another")
    assert [len(one.sizes) for one in last.maps] == [11, 0, 0, 0]


def test_what_is_not_there_is_removed_without_a_trace():
    client = StoreClient(MoveStore())
    asyncio.run(write_backups(client, Backups("t"), {"q": None}))
    assert client.requests.total() == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            Invalid(422, "Invalid", "Too long: must have at most 1048576 bytes"),
            "does not take the backups of 1 queue: 422",
        ),
        (Conflict(409, "Conflict", "changed"), "was changed meanwhile, by another command that moves queues"),
    ],
)
def test_a_config_map_that_takes_no_backup_is_told(error, said):
    class Refusing:
        async def create(self, *_, **__):
            raise error

    with pytest.raises(Failure, match=said):
        asyncio.run(write_backups(Refusing(), Backups("t"), {"q": kept(1)}))


def test_a_move_whose_backups_are_in_several_config_maps_is_killed_between_them(monkeypatch):
    monkeypatch.setattr(backup, "MOST_BYTES", 300)
    world = make_world()
    goal, back = world.copy(), world.copy()
    goal.run("--move")
    assert [name for name in names_of(goal.store) if name.startswith(backup.NAME)] == [
        "topogate-migration",
        "topogate-migration-2",
    ]
    world.run("--move", dies_after=1)
    # Nothing is on hold yet: the way back has nothing to do before the move has gone on.
    with pytest.raises(Failure, match="--move a b` brings them together first"):
        world.run("--back")
    world.run("--move")
    assert world.digest() == goal.digest()
    back.run("--move")
    back.run("--back")
    assert asyncio.run(read_backups(StoreClient(back.store), "topogate")).queues == {}
    # The first one goes last, so that a run which ends between the two finds both.
    writes = goal.copy().run("--finish").writes
    for at in range(writes - 4, writes):
        world = goal.copy()
        world.run("--finish", dies_after=at)
        world.run("--finish")
        assert not [name for name in names_of(world.store) if name.startswith(backup.NAME)]
