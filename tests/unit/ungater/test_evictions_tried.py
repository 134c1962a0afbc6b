"""Evictions under way: what is tried again, and when."""

import pytest
from support.owned import make_pod

from kube.errors import ConnectionFailed
from ungater.evictions import Evictions
from ungater.metrics import Metrics


def test_a_look_before_the_next_attempt_is_due_asks_for_another_then():
    now, asked = [100.0], []
    evictions = Evictions(
        None,
        concurrency=1,
        again=lambda uid, after: asked.append((uid, after)),
        recorder=None,
        metrics=Metrics(),
        clock=lambda: now[0],
    )
    pod = make_pod(gated=False, node="n1")
    evictions.evict("job", pod, "makes room")
    evictions._refused(evictions._queue.get_nowait(), ConnectionFailed("no answer"))
    ((_, delay),) = asked
    now[0] += 0.25
    evictions.evict("job", pod, "makes room")  # a look for another reason takes the place of the one asked for
    assert asked[1:] == [("job", pytest.approx(delay - 0.25))]
    assert evictions._queue.empty()
    now[0] += delay
    evictions.evict("job", pod, "makes room")
    assert evictions._queue.get_nowait().pod is pod
