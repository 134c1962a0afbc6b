"""Controllers that hold a workload back until they agree (``admission-gated-by``). Pure: webhook and ungater read it.

Rules, as in Kueue 0.19.2 (pkg/util/webhook/validation_admissiongatedby.go)
- The annotation lists names such as ``example.com/budget``, separated by commas: each once, 63 characters at most.
- It comes with the object. Afterwards names are taken out of it, and none is added.
- Any text holds the workload back, even one that came while nobody checked it; an empty one does not.
"""

import re
from collections.abc import Iterator

from crds.names import is_object_name

MAX_GATE = 63  # as long as spec.managedBy of a Job
SHOWN = 3  # names in a message
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")


def gate_names(text: str) -> list[str]:
    """The names in a value of the annotation, as they stand there."""
    return [name.strip() for name in text.split(",")] if text.strip() else []


def bad_gates(text: str) -> Iterator[str]:
    """What is wrong with a value of the annotation, for a message that names it."""
    seen: set[str] = set()
    for name in gate_names(text):
        host, slash, path = name.partition("/")
        if name in seen:
            yield f'"{_shortened(name)}" stands there twice'
        elif not (slash and is_object_name(host) and _PATH.fullmatch(path)):
            yield f'"{_shortened(name)}": expected names such as "example.com/budget", separated by commas'
        elif len(name) > MAX_GATE:
            yield f'"{_shortened(name)}": a name has at most {MAX_GATE} characters'
        seen.add(name)


def bad_change(old: str, new: str) -> str:
    """Why the annotation cannot become this, for a message; "" where it can."""
    if not new:
        return ""
    if not old:
        return "it cannot be added after the creation"
    known = set(gate_names(old))
    added = next((name for name in gate_names(new) if name not in known), None)
    return f'"{_shortened(added)}" cannot be added: names can only be removed' if added is not None else ""


def held_by(text: str, key: str) -> str:
    """Who holds a workload back, and until when, for its condition. ``text``: the value of annotation ``key``."""
    names = [_shortened(name) for name in gate_names(text)] or ['""']
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    told = "it removes its name" if len(names) == 1 else "each removes its name"
    where = f"metadata.annotations[{key}]"
    return f"admission is held back by {', '.join(names[:SHOWN])}{more}: {told} from {where} once it may start"


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_GATE else f"{name[:MAX_GATE]}..."
