"""What came of a simulation: one outcome a job, and series over time."""

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from simulator.fragments import Fragments
from simulator.model import SchedulingPolicy

Ints = NDArray[np.int64]


class End(StrEnum):
    """How a job ended."""

    FINISHED = "Finished"
    REFUSED = "Refused"  # kubelets refused its pods more often than it retries
    RUNNING = "Running"  # when the simulation was cut off
    WAITING = "Waiting"  # when nothing was left that could help it, or the simulation was cut off


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job. Times in seconds since the simulation began; None where that never happened.

    ``amount``: of the measured resource, all pods together. ``wait``: from arrival until all its pods ran first.
    ``lost``: seconds of work that evictions and moves undid.
    When it last started: ``domains``, how many of each level its pods
    were in; ``aligned``, whether they were in one domain of the level it wishes (None: it wishes none); ``crossing``,
    how many got devices of several sockets though one has as many; ``avoidable``, how many of these had a node, as the
    cluster was, where they would not; ``kept``, of how many of those all such nodes were closed for who waits for
    longer than the rules' ``hold``; ``split``, how many hold something of more
    NUMA zones than they would on an empty machine.
    """

    name: str
    arrival: float
    duration: float
    pods: int
    amount: int
    priority: int
    queue: str
    topology: str
    end: End
    started: float | None = None
    finished: float | None = None
    wait: float | None = None
    starts: int = 0
    evictions: int = 0
    moves: int = 0
    lost: float = 0.0
    refusals: int = 0
    crossing: int = 0
    avoidable: int = 0
    kept: int = 0
    split: int = 0
    aligned: bool | None = None
    domains: dict[str, int] = {}
    reason: str = ""


class UsageSeries(msgspec.Struct):
    """One row a moment at which anything changed; it holds until the next. ``used``: by server, as in ``servers``."""

    times: list[float] = msgspec.field(default_factory=list)
    used: list[Ints] = msgspec.field(default_factory=list)
    running: list[int] = msgspec.field(default_factory=list)
    waiting: list[int] = msgspec.field(default_factory=list)
    wanted: list[int] = msgspec.field(default_factory=list)  # of the resource, by those who wait
    levels: list[list[Fragments]] = msgspec.field(default_factory=list)


class PodDevices(msgspec.Struct, frozen=True):
    """A pod's devices (by index) on one server (by index)."""

    server: int
    devices: tuple[int, ...]
    crosses: bool


class Result(msgspec.Struct, frozen=True):
    """A simulation under one policy. ``capacity``: of the resource by server; ``cycles``: of the queue core.

    ``instances``: who held which devices at the time ``pictured``, where servers have an inside.
    """

    policy: SchedulingPolicy
    resource: str
    servers: tuple[str, ...]
    capacity: Ints
    levels: tuple[str, ...]
    outcomes: tuple[JobOutcome, ...]
    series: UsageSeries
    window: float  # seconds until the last job arrived; where all arrive at 0, until the last one ended
    cycles: int = 0
    pictured: float = 0.0
    instances: tuple[PodDevices, ...] = ()
