"""``topogate simulate``: the same engine and queues in discrete time, without a cluster. docs/simulate.md."""

import typer

from cli.simulate import generate, paper, run

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run jobs on a recorded or generated cluster in simulated time, without a cluster, and compare policies.",
)


@app.callback()
def _group() -> None:
    pass


app.command("run")(run.command)
app.command("generate")(generate.command)
app.command("paper")(paper.command)
