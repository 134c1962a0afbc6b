"""When room in a flavor may have become free: what is counted for those who look again, and for how long."""

from support.queue_factories import keys, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle.elastic import resize


def admitted():
    state, queues = make_state(2, 4), make_queues(make_queue("q", 64))
    for name in ("first", "second"):
        submit(queues, make_workload(f"ns/{name}", count=2))
    assert keys(run(state, queues)) == ["ns/first", "ns/second"]
    return state, queues


def test_who_may_grow_looks_again_where_another_gave_room_back_and_where_flavors_changed():
    state, queues = admitted()
    before = queues.freed_so_far("ns/first")
    queues.remove_workload(state, "ns/second")
    given = queues.freed_so_far("ns/first")
    assert given != before
    queues.flavors_changed()
    assert queues.freed_so_far("ns/first") not in {given, before}


def test_nothing_is_kept_of_flavors_that_are_gone():
    state, queues = admitted()
    queues.remove_workload(state, "ns/second")
    assert queues.pending.rooms
    state.remove_flavor("tas")
    queues.flavors_changed()
    queues.remove_workload(state, "ns/first")
    assert queues.pending.rooms == {}


def test_one_whose_pods_are_all_done_looks_again_where_another_gave_room_back():
    # A JobSet that starts anew makes its pods once more, and its Workload holds nothing by then.
    state, queues = admitted()
    (pod_set,) = queues.entries["ns/first"].workload.pod_sets
    resize(state, queues, "ns/first", {pod_set.name: 0})
    before = queues.freed_so_far("ns/first")
    queues.remove_workload(state, "ns/second")
    assert queues.freed_so_far("ns/first")[2:] != before[2:]
