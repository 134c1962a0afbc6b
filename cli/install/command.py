"""``topogate install`` and ``topogate uninstall``: the objects of manifests/ in the current context."""

import asyncio
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from cli.cluster.simulated_nodes import install_command, require_nodes_that_run_pods
from cli.connected import connected
from cli.install import flavor as flavors
from cli.install import installation, left_objects, printing, removal, waiting
from cli.install.installation import Requested
from cli.install.left_objects import Left
from cli.install.steps import InstallStep
from cli.output import Context, Failure, Kubeconfig, Output, OutputFormat, emit, plain_table, progress, stderr, stdout
from cli.topology.known import WORDS
from crds.constants import DEFAULT_DOMAIN, NAMESPACE
from crds.settings import CONFIG_MAP
from kube.client import Client
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, MUTATING_WEBHOOKS, NAMESPACES
from manifests import render

WAIT_SECONDS = 120.0

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of Topogate itself.")]
Domain = Annotated[
    str,
    typer.Option(
        "--domain",
        help=f"Prefix of the request annotations, the gate and the queue label; default the installed one, "
        f"else {DEFAULT_DOMAIN}. Under Kueue choose another, such as topogate.dev.",
    ),
]
Image = Annotated[str, typer.Option("--image", help="Container image of the components.")]
OutOfCluster = Annotated[
    bool,
    typer.Option("--out-of-cluster", help="Apply no Deployments: webhook and ungater run elsewhere."),
]
WebhookUrl = Annotated[
    str, typer.Option("--webhook-url", help="Where the API server reaches that webhook: https://HOST:PORT.")
]
Agent = Annotated[
    bool | None,
    typer.Option(
        "--agent/--no-agent",
        help="Run the agent on every node, or no longer; default as it is. It publishes each machine's hardware "
        "and what its kubelet gave to whom, by which pods are placed inside of their nodes.",
    ),
]
Kueue = Annotated[
    bool | None,
    typer.Option(
        "--kueue/--no-kueue",
        help="Let the ungater answer Kueue's admission check topogate.dev/topology, or no longer; default where "
        "Kueue's kinds are.",
    ),
]
BesideKueue = Annotated[
    bool | None,
    typer.Option(
        "--beside-kueue/--no-beside-kueue",
        help="Share the domain of a Kueue in the cluster, and serve only namespaces with the label "
        "topogate.dev/served=true, or no longer; default as it is.",
    ),
]
MetricsAuthentication = Annotated[
    bool | None,
    typer.Option(
        "--metrics-authentication/--no-metrics-authentication",
        help="Let only those read metrics whom Kubernetes lets, over TLS, or no longer; default as it is.",
    ),
]
Topology = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="auto|gke|eks|...|LABEL,LABEL",
        help="Make the ResourceFlavor too: `auto` finds known labels on the nodes; a word names whose they are "
        f"({', '.join(WORDS[1:])}); or the labels themselves, the widest first.",
    ),
]
Flavor = Annotated[
    str, typer.Option("--flavor", help="With --topology: the name of the flavor; default the word, or `nodes`.")
]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="KEY=VALUE",
        help="With --topology: which nodes are meant; default those with accelerators.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all pods of it run.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", hidden=True, metavar="KEY=VALUE", help="Helm's; this command says its own.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Let the API server check everything, and change nothing.")]


def install(
    domain: Domain = "",
    namespace: Namespace = NAMESPACE,
    image: Image = "",
    out_of_cluster: OutOfCluster = False,
    webhook_url: WebhookUrl = "",
    agent: Agent = None,
    kueue: Kueue = None,
    metrics_authentication: MetricsAuthentication = None,
    beside_kueue: BesideKueue = None,
    topology: Topology = None,
    flavor: Flavor = "",
    nodes: Nodes = "",
    wait: Wait = True,
    timeout: Timeout = WAIT_SECONDS,
    dry_run: DryRun = False,
    values: Set = None,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Install Topogate into the current context, or bring what is installed to this version.

    Installing twice changes nothing. With `-o yaml` or `-o json` the objects are printed and nothing is applied.
    """
    if values:
        raise Failure(
            f"--set {values[0]}: that is an option of helm. Here the domain is --domain NAME, the image --image IMAGE "
            f"(--help lists all); settings are in ConfigMap {CONFIG_MAP} after the installation"
        )
    # All that the command line alone can tell wrong, before the cluster is touched.
    if out_of_cluster != bool(webhook_url):
        raise Failure("--out-of-cluster and --webhook-url https://HOST:PORT come together")
    if webhook_url and not webhook_url.startswith("https://"):
        raise Failure(f"--webhook-url {webhook_url}: expected https://HOST:PORT; the API server calls nothing else")
    wanted = flavors.meant(topology)
    if (flavor or nodes) and not wanted:
        raise Failure("--flavor and --nodes say more about --topology: give that too, as --topology auto")
    wish = Requested(domain, namespace, image, webhook_url, agent, kueue, metrics_authentication, beside_kueue)
    site = _Site(wanted, flavors.parse_flavor(flavor), flavors.group_of(nodes))
    if output is not OutputFormat.TABLE:
        objects = render.objects(asyncio.run(installation.plan(None, wish)))
        # A cluster is looked at for its nodes alone, where they are to say what the topology is.
        if site.topology:

            async def add(client: Client) -> None:
                objects.append((await flavors.planned(client, *site))[1])

            connected(add, kubeconfig, context, administrator="topogate install")
        if output is OutputFormat.YAML:
            printing.write(objects, sys.stdout)
        else:
            emit({"apiVersion": "v1", "kind": "List", "items": objects}, output)
        return
    work = partial(_install, wish=wish, site=site, seconds=timeout if wait else 0.0, dry_run=dry_run)
    connected(work, kubeconfig, context, administrator="topogate install")


class _Site(NamedTuple):
    """What was said of the flavor; ``topology`` empty: nothing."""

    topology: str
    flavor: str
    nodes: dict[str, str]


async def _install(client: Client, *, wish: Requested, site: _Site, seconds: float, dry_run: bool) -> None:
    """``seconds``: for how long its pods are waited for; 0: not at all."""
    options = await installation.plan(client, wish)
    if (seconds or dry_run) and not wish.webhook_url:
        # Before anything is applied: a webhook that never answers would refuse every Job with a request.
        await require_nodes_that_run_pods(client, site.topology)
    objects = render.objects(options)
    made: dict[str, Any] | None = None
    if site.topology:
        # Planned first, as its refusals need no installation; applied later, as its kind may not be there yet.
        choice, made = await flavors.planned(client, *site)
        stdout().print(flavors.render_flavor(choice, made))
    # API servers call a webhook from the moment of its configuration on: a first one comes once somebody answers.
    waits = bool(seconds) and not wish.webhook_url and not dry_run and not await installation.is_called(client)
    calls = [obj for obj in objects if waits and obj["kind"] == MUTATING_WEBHOOKS.kind]
    with progress(f"Applying {len(objects)} objects"):
        await _show(installation.apply(client, [obj for obj in objects if obj not in calls], dry_run=dry_run))
    if dry_run:
        if made is not None:
            stdout().print(str(await flavors.applied(client, made, dry_run=True)))
        stdout().print("Nothing was changed: this was a dry run.")
        return
    if wish.webhook_url:
        # Removed only after the new objects are there: what is left over is harmless, what is missing is not.
        await _show(installation.remove_components(client, options))
    for part in ("agent", "kueue", "metrics_authentication", "beside"):
        if getattr(wish, part) is False:
            await _show(installation.remove_part(client, options, part))
    with progress("Waiting for the API server to serve the kinds"):
        # Even with --no-wait: the flavor below is of a kind that the API server has to serve first.
        await waiting.wait_established(client, seconds or WAIT_SECONDS)
    if made is not None:
        stdout().print(str(await flavors.applied(client, made, dry_run=False)))
    if seconds and not wish.webhook_url:
        with progress("Waiting for the pods"):
            await _wait_available(client, options, seconds, called=not calls)
    if calls:
        await _show(installation.apply(client, calls))
        with progress("Waiting for the webhook to be trusted"):
            await waiting.wait_trusted(client, seconds)
    _next_steps(options, made or await flavors.existing_flavor(client))


async def _wait_available(client: Client, options: render.InstallOptions, seconds: float, *, called: bool) -> None:
    """Wait for the pods; where the webhook is not ``called`` yet, a failure says that it stays so."""
    try:
        await waiting.wait_available(client, options, seconds)
    except Failure as error:
        if called:
            raise
        again = "run the same command again once the pods can run, or `topogate uninstall`"
        raise Failure(
            f"{error}. The webhook is not called yet, so no Job is refused, and none with a request is placed: {again}"
        ) from error


def uninstall(
    domain: Domain = "",
    namespace: Namespace = NAMESPACE,
    delete_crds: Annotated[
        bool,
        typer.Option("--delete-crds", help="Delete the kinds too, and with them all flavors, queues and Workloads."),
    ] = False,
    ungate: Annotated[
        bool, typer.Option("--ungate", help="Remove the gate from waiting pods, which then run anywhere.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted and who would wait, and change nothing.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Remove Topogate from the current context: webhook and policy first, then the rest. Running pods stay."""

    async def run(client: Client) -> None:
        options = await installation.installed(client, namespace, domain)
        if dry_run or not yes:
            # The question names what would be lost, so it is counted before anything goes.
            planned = [step async for step in removal.uninstall(client, options, delete_crds=delete_crds, dry_run=True)]
            left = await left_objects.left_behind(client, options.domain, beside=options.beside)
            if dry_run:
                _report(planned, left, [], output, before=True, ungate=ungate)
                return
            stored = await removal.count_data(client) if delete_crds else {}
            count = sum(step.outcome == "deleted" for step in planned)
            for line in left_objects.lines(left, ungated=ungate, before=True):
                stderr().print(line, soft_wrap=True)
            held = ", ".join(f"{number} {plural}" for plural, number in stored.items() if number)
            kinds = f", and with the kinds what is stored in them: {held or 'nothing'}" if stored else ""
            try:
                # On stderr: stdout may be a pipe that wants JSON.
                agreed = typer.confirm(f"Delete {count} objects of Topogate{kinds}?", err=True)
            except typer.Abort as error:
                raise Failure("nothing was deleted: nobody answered; --yes does not ask") from error
            if not agreed:
                raise Failure("nothing was deleted")
        with progress("Deleting"):
            steps = [step async for step in removal.uninstall(client, options, delete_crds=delete_crds)]
            # A namespace or kind that still terminates would take the objects of the next install with it.
            slow = {resource.kind: resource for resource in (NAMESPACES, CUSTOM_RESOURCE_DEFINITIONS)}
            await waiting.wait_gone(
                client,
                [(slow[step.kind], step.name, "") for step in steps if step.kind in slow and step.outcome == "deleted"],
            )
            # Looked at again: pods may have been created, or gone, while the question was open.
            left = await left_objects.left_behind(client, options.domain, beside=options.beside)
            # After the policy is deleted, which lets only the ungater's account remove gates.
            ungated = [pod async for pod in removal.ungate(client, options.domain, left.gated_pods if ungate else [])]
        _report(steps, left, ungated, output, ungate=bool(ungated))

    connected(run, kubeconfig, context, administrator="topogate uninstall")


async def _show(steps: AsyncIterator[InstallStep]) -> None:
    async for step in steps:
        stdout().print(str(step))


def _next_steps(options: render.InstallOptions, flavor: dict[str, Any] | None) -> None:
    again = install_command(options.webhook_url)
    next_step = f"make a ResourceFlavor of your nodes' labels ({again} --topology auto), then annotate a Job."
    if flavor is not None:
        names, levels = flavor["spec"]["topology"]["names"], flavor["spec"]["topology"]["levels"]
        # The example names a level that most jobs want, not the widest.
        word = next((name for name in ("rack", "nvlink", "zone", *names) if name in names), levels[0])
        next_step = f"annotate a Job with {options.domain}/require-topology: {word}; topogate tree shows the topology."
    stdout().print(
        f"Topogate is installed in namespace {options.namespace}. Its request annotations are {options.domain}/...\n"
        f"Next: {next_step}",
        soft_wrap=True,
    )
    if options.webhook_url:
        stdout().print(
            f"Nothing of it runs in the cluster: start `topogate webhook`, which {options.webhook_url} leads to, and\n"
            "`topogate ungater` beside it: docs/install.md, Components beside the cluster.",
        )
    if options.beside:
        stdout().print(
            f"Beside Kueue, Topogate serves namespaces with the label {installation.SERVED_TRUE} alone. Have Kueue\n"
            "leave them out before you label one: docs/move-from-kueue.md, Move while Kueue runs.",
            soft_wrap=True,
        )
    elif options.kueue:
        stdout().print(
            "Kueue asks Topogate for a place where its ClusterQueues name an AdmissionCheck with\n"
            "controllerName topogate.dev/topology: docs/kueue.md.",
        )


def _report(
    steps: list[InstallStep],
    left: Left,
    ungated: list[str],
    output: OutputFormat,
    *,
    before: bool = False,
    ungate: bool,
) -> None:
    if output is not OutputFormat.TABLE:
        emit({"objects": steps, "left": left, "ungated": ungated}, output)
        return
    table = plain_table("KIND", "NAME", "NAMESPACE", "")
    for step in steps:
        table.add_row(step.kind, step.name, step.namespace, f"{step.outcome}{' (dry run)' * step.dry_run}")
    stdout().print(table if steps else "Nothing of Topogate was found.")
    if ungated:
        stdout().print(f"{len(ungated)} pods were ungated and run anywhere.")
    for line in left_objects.lines(left, ungated=ungate, before=before):
        stderr().print(line, soft_wrap=True)
    if before:
        stdout().print("Nothing was changed: this was a dry run.")
