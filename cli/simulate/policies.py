"""Policies as a person writes them: ``topology``, ``count-only+preemption``, ``count-only-pack+strict``."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from cli.output import Failure
from engine.numa.score import AlignmentOverPacking
from engine.preemption.model import Strategy
from simulator.model import Placing, SchedulingPolicy

WORDS: Final[dict[str, dict[str, Any]]] = {
    "preemption": {"preemption": True},
    "no-preemption": {"preemption": False},
    "minimal": {"preemption": True, "strategy": Strategy.INCREMENTAL_MINIMAL},
    "strict": {"strict": True},
    "best-effort": {"strict": False},
    "fair": {"fair": True},
    "by-use": {"by_use": True},
    "claims": {"claims": True},
    "no-claims": {"claims": False},
    "no-leaving": {"leaving": False},
    "moves": {"moves": True},
    "hosts-first": {"opening": 0},
    "align-never": {"alignment": AlignmentOverPacking.NEVER},
    "align-used-nodes": {"alignment": AlignmentOverPacking.USED_NODES},
    "align-used-domains": {"alignment": AlignmentOverPacking.USED_DOMAINS},
    "align-always": {"alignment": AlignmentOverPacking.ALWAYS},
}
EXAMPLE: Final = "topology, count-only+preemption, count-only-pack+strict+fair"
DEFAULT: Final = ("topology", "count-only")


def policies(texts: Sequence[str]) -> tuple[SchedulingPolicy, ...]:
    """The policies that are named; each once.

    Raises:
        Failure: one is not understood, or is there twice.
    """
    found: list[SchedulingPolicy] = []
    for text in [part.strip() for one in texts for part in one.split(",") if part.strip()]:
        placing, *words = text.split("+")
        if placing not in list(Placing):
            raise Failure(f"--policy {text!r}: {placing!r}: expected one of {', '.join(Placing)}, as in {EXAMPLE}")
        policy = SchedulingPolicy(text, Placing(placing))
        for word in words:
            if word not in WORDS:
                raise Failure(f"--policy {text!r}: {word!r}: expected one of {', '.join(WORDS)}, as in {EXAMPLE}")
            policy = replace(policy, **WORDS[word])
        found.append(policy)
    names = [policy.name for policy in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Failure(f"--policy {twice}: is there twice")
    if not found:
        raise Failure(f"--policy: expected one such as {EXAMPLE}")
    return tuple(found)
