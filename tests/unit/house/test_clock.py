"""One clock: the module `clock` alone reads the time; whatever else needs it is handed a `Clock` (docs/develop.md)."""

import ast

import pytest
from support.imports import PACKAGES, modules, parsed

CLOCK = "clock"
READ_NO_TIME = frozenset({"time.sleep"})  # of the module time; what converts is in datetime
READ_TIME = frozenset(
    {
        *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        *("os.times", "timeit.default_timer", "uuid.uuid1", "email.utils.localtime", "resource.getrusage"),
        "structlog.processors.TimeStamper",
    }
)
READ_TIME_OR_CONVERT = frozenset({"email.utils.formatdate"})  # by whether they are given a moment
# Of an event loop and of a metric of prometheus-client, by whatever name there is for one.
METHODS = frozenset({"time", "set_to_current_time"})

# Known, with why; an entry that is not needed any more fails too.
ALLOWED = {
    "webhook.connection:ReviewConnection._answer: .time": "aiohttp keeps the end of idle time by its loop's clock",
}
# Where the machine's own clock comes in: the ends of processes and commands, and libraries that have no process.
EDGES = ("cli", "kube", "localcluster", "agent.run", "agent.copies", "webhook.server", "ungater.process")
COMMANDS = "cli"  # whose functions are what a person calls: nobody could hand them a clock


def readings(text):
    """What reads the time in a module: the function it stands in, and how."""
    tree = parsed(text)
    names = {}  # what is imported, by the name it has here
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                name = one.asname or one.name.partition(".")[0]
                names[name] = one.name if one.asname else name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return list(_readings(tree, names, ""))


def _readings(tree, names, around):
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        inner = f"{around}.{node.name}".lstrip(".") if named else around
        if what := _reading(node, names):
            yield f"{inner}: {what}"
        yield from _readings(node, names, inner)


def _reading(node, names):
    """How this very node reads the time; "" where it does not."""
    if isinstance(node, ast.ImportFrom):
        return "time.*" if node.module == "time" and any(one.name == "*" for one in node.names) else ""
    if isinstance(node, ast.Call):
        what, given = _whole(node.func, names), [*node.args, *(one for one in node.keywords if one.arg == "timeval")]
        if what in READ_TIME_OR_CONVERT:
            return "" if given else what
        return "" if what or node.args else _method(node.func)
    if isinstance(node, ast.keyword | ast.Assign) and not _whole(node.value, names):
        return _method(node.value)  # handed on, to be called
    what = _whole(node, names)
    return what if what in READ_TIME or (what.startswith("time.") and what not in READ_NO_TIME) else ""


def _method(node):
    return f".{node.attr}" if isinstance(node, ast.Attribute) and node.attr in METHODS else ""


def _whole(node, names):
    """The whole name of what was imported, or is in a module that was; "" for all else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join((names[node.id], *reversed(parts)))


def machines_clock(text):
    """Where a module names the clock of the machine: as the default of an argument or field, and elsewhere."""
    if CLOCK not in text:
        return [], []
    tree = parsed(text)
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == CLOCK]
    own = {one.asname or one.name for node in imported for one in node.names if one.name in {"SYSTEM", "cpu_seconds"}}
    whole = {
        one.asname or one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for one in node.names
        if one.name == CLOCK
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in own | whole]
    defaults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            defaults += [*node.defaults, *node.kw_defaults]
        elif isinstance(node, ast.ClassDef):
            defaults += [field.value for field in node.body if isinstance(field, ast.AnnAssign)]
    return [node for node in found if node in defaults], [node for node in found if node not in defaults]


def judged(found, known):
    """What is found and not known, and what is known and not found any more."""
    return sorted(set(found) - known.keys()), sorted(known.keys() - set(found))


@pytest.fixture(scope="module")
def texts():
    found = modules(*PACKAGES)
    assert len(found) > 300
    return found


def test_nothing_but_the_clock_reads_the_time(texts):
    found = [f"{module}:{one}" for module, text in texts.items() if module != CLOCK for one in readings(text)]
    assert judged(found, ALLOWED) == ([], [])


def test_the_clock_reads_it(texts):
    assert len(readings(texts[CLOCK])) == 3


def test_the_machines_clock_comes_in_at_the_edges_alone_and_as_a_default(texts):
    defaults, others = {}, {}
    for module, text in texts.items():
        if module != CLOCK:
            defaults[module], others[module] = machines_clock(text)
    named = [module for module in texts if defaults.get(module) or others.get(module)]
    inside = [module for module in named if not any(f"{module}.".startswith(f"{edge}.") for edge in EDGES)]
    assert inside == []
    assert [module for module in named if others[module] and not module.startswith(f"{COMMANDS}.")] == []
    assert [edge for edge in EDGES if not any(f"{module}.".startswith(f"{edge}.") for module in named)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import time\ndef f():\n    return time.time()\n", ["f: time.time"]),
        ("import time as t\nclass C:\n    def f(self, clock=t.monotonic): pass\n", ["C.f: time.monotonic"]),
        ("def f():\n    import time\n    return time.perf_counter_ns()\n", ["f: time.perf_counter_ns"]),
        ("import time\nat: float = field(default_factory=time.process_time)\n", [": time.process_time"]),
        ("import time\nprint(time.strftime('%Y'))\n", [": time.strftime"]),
        ("from time import monotonic\nmonotonic()\n", [": time.monotonic"]),
        ("from time import time as now\nat = now()\n", [": time.time"]),
        ("from time import *\n", [": time.*"]),
        ("from datetime import UTC, datetime\nat = datetime.now(UTC)\n", [": datetime.datetime.now"]),
        ("import datetime as dt\nat = dt.datetime.utcnow()\n", [": datetime.datetime.utcnow"]),
        ("import datetime\nat = datetime.date.today()\n", [": datetime.date.today"]),
        ("from datetime import date as day\nat = day.today()\n", [": datetime.date.today"]),
        ("import asyncio\nat = asyncio.get_running_loop().time()\n", [": .time"]),
        ("async def f(loop):\n    return loop.time() + 1\n", ["f: .time"]),
        ("def f(self):\n    g(clock=self._loop.time)\n", ["f: .time"]),
        ("def f(self, loop):\n    self._now = loop.time\n", ["f: .time"]),
        ("def f(self):\n    with self.seconds.labels('a').time(): pass\n", ["f: .time"]),
        ("gauge.set_to_current_time()\n", [": .set_to_current_time"]),
        ("from email.utils import formatdate\nat = formatdate(usegmt=True)\n", [": email.utils.formatdate"]),
        ("import email.utils\nat = email.utils.formatdate(usegmt=True)\n", [": email.utils.formatdate"]),
        ("import structlog\nx = structlog.processors.TimeStamper()\n", [": structlog.processors.TimeStamper"]),
        ("import time\ntime.sleep(1)\n", []),
        ("from time import sleep\n", []),
        ("import email.utils\nat = email.utils.formatdate(second, usegmt=True)\n", []),
        ("from datetime import UTC, datetime\nat = datetime.fromtimestamp(0, UTC)\n", []),
        ("def f(self, clock):\n    return clock.now(), clock.utc(), self._clock.monotonic()\n", []),
        ("def f(reader, row):\n    return reader.time(row, 'arrival')\n", []),
    ],
)
def test_what_reads_the_time_is_found_however_it_is_called(text, found):
    assert readings(text) == found


def test_the_machines_clock_is_found_as_a_default_and_elsewhere():
    def lines(text):
        return tuple([node.lineno for node in found] for found in machines_clock(text))

    assert lines("from clock import SYSTEM\ndef f(a, clock=SYSTEM, *, b=SYSTEM): pass\n") == ([2, 2], [])
    assert lines("from clock import SYSTEM as S\nclass C:\n    clock: Clock = S\n") == ([3], [])
    assert lines("from clock import SYSTEM\nat = SYSTEM.now()\n") == ([], [2])
    assert lines("from clock import SYSTEM\ndef f():\n    clock: Clock = SYSTEM\n") == ([], [3])
    assert lines("import clock\ndef f(it=clock.SYSTEM): pass\n") == ([], [2])
    assert lines("from clock import Clock\ndef f(clock: Clock):\n    return clock.now()\n") == ([], [])
    assert lines("from elsewhere import SYSTEM\nSYSTEM.now()\n") == ([], [])


def test_what_is_known_must_still_be_so():
    assert judged(["a:f: .time", "b:g: .time"], {"b:g: .time": "why"}) == (["a:f: .time"], [])
    assert judged(["a:f: .time"], {"a:f: .time": "why", "b:g: .time": "why"}) == ([], ["b:g: .time"])
