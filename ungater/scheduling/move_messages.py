"""What people are told of moves. Plain functions, for events and conditions."""


def makes_room(title: str) -> str:
    """It moves for another workload (``title``)."""
    return f"it goes elsewhere for {title}, which has waited for long and needs the domain"


def realigned(texts: list[str]) -> str:
    """Some of its pods lack what they ask for, as ``texts`` say."""
    many = "1 of its pods moves" if len(texts) == 1 else f"{len(texts)} of its pods move"
    return f"{many} to other nodes: {'; '.join(texts[:3])}"


def less_spread_message(gone: int, total: int, gains: list[str]) -> str:
    """It gets less spread."""
    return f"it comes together: {gone} of its {total} pods move{'s' if gone == 1 else ''}, for {', '.join(gains)}"


def gain(now: int, then: int, level: str) -> str:
    """By how many domains."""
    return f"{now} instead of {then} domains of {level}"


def asked_for(mark: str) -> str:
    """An administrator wants it; ``mark`` tells the request."""
    return f"an administrator has it moved {mark}"


def not_moved(mark: str, why: str) -> str:
    """An administrator wants it in vain."""
    return f"it is not moved {mark}: {why}"


def used_up(most: int) -> str:
    """There were too many moves."""
    return f"no more than {most} moves an hour (movesPerHour)"


def given_up(mark: str, why: str) -> str:
    """Pods that did not go in time stay."""
    return f"it was to be moved{mark and ' '}{mark}, and pods that did not go stay where they are: {why}"
