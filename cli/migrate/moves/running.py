"""``--move``, ``--back`` and ``--finish`` on the command line: each thing is printed when it is done."""

from collections.abc import Callable, Sequence

import typer

from cli.migrate.moves.finish import KueueRemoval
from cli.migrate.moves.handover import Handover
from cli.migrate.moves.phase_walk import MoveOptions, Tell
from cli.migrate.moves.take_back import TakeBack
from cli.output import Failure, OutputFormat, emit, stdout
from kube.client import Client


async def run_way(
    client: Client, *, way: str, queues: Sequence[str], options: MoveOptions, yes: bool, keep: bool, tell: Tell
) -> None:
    """Do what the option ``way`` says. Raises Failure with what to do."""
    if way == "--move":
        await Handover(client, options, tell).move_queues(queues)
    elif way == "--back":
        await TakeBack(client, options, tell).take_back(queues)
    else:
        await KueueRemoval(client, options, tell, lambda question: yes or ask(question)).finish(keep=keep)


def ask(question: str) -> bool:
    """Ask on stderr, since stdout may be a pipe that wants JSON. Raises Failure where nobody answers."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as error:
        raise Failure("nothing was deleted: nobody answered; --yes does not ask") from error


def show_steps(work: Callable[[Tell], None], output: OutputFormat) -> None:
    """Print what is done as it is done; as JSON or YAML all of it at the end."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if output is OutputFormat.TABLE:
            # A move takes minutes: each line is there when its step is.
            stdout().print(text, soft_wrap=True, markup=False, highlight=False)

    work(tell)
    if output is not OutputFormat.TABLE:
        emit({"steps": told}, output)
