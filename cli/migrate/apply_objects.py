"""``--apply``: everything is tried first, and nothing is written before all of it could be."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from cli.cluster import installed
from cli.install import installation
from cli.install.steps import InstallStep, read
from cli.migrate.rows import Json, MigrationReport
from cli.migrate.source_objects import list_resources
from cli.output import Failure, counted, some
from crds.settings import CONFIG_KEY, CONFIG_MAP, SettingsError, parse
from kube.client import Client
from kube.errors import Conflict, Forbidden, KubeError
from kube.resources import CONFIG_MAPS, resource_of

FIELD_MANAGER: Final = "topogate-migrate"
_SHOWN: Final = 8  # problems in one message


class AppliedObjects(msgspec.Struct, frozen=True):
    """What became of each object, and of the settings; ``left``: how many are for --move to make."""

    steps: list[InstallStep]
    left: int = 0

    def render_steps(self) -> RenderableType:
        """A line for each."""
        lines = [Text(str(step)) for step in self.steps]
        if self.left:
            lines.append(Text(f"{counted(self.left, 'queue or cohort')} left to `topogate migrate kueue --move`"))
        return Group(*lines)


async def apply_report(
    client: Client, report: MigrationReport, namespace: str, *, skip_refused: bool, overwrite: bool
) -> AppliedObjects:
    """Create the objects of a report, and merge its settings. Twice changes nothing.

    Raises Failure, before anything is written: objects are refused and not to be skipped; the API server takes an
    object not; or one is there already, differs, and is not to be overwritten.
    """
    refused = report.list_refused()
    if refused and not skip_refused:
        titles = some([row.title for row in refused])
        count = counted(len({(row.title, row.where) for row in report.rows if row.kind and not row.field}), "object")
        raise Failure(
            f"nothing was applied: {len(refused)} of {count} are refused ({titles}); --dry-run says why, and "
            "--skip-refused applies the others"
        )
    await installed.require(client)
    config = await read_settings_map(client, namespace)
    objects = [place_in_namespace(obj, client.connection.namespace) for obj in report.objects]
    left = 0
    if installed.in_use(config, namespace).settings.beside_kueue and await list_resources(client):
        # Queues that Kueue serves still would lend their quota a second time: each comes when it moves.
        kept = [obj for obj in objects if obj["kind"] not in _MOVED]
        left, objects = len(objects) - len(kept), kept
    # One after the other: the first refusal of a namespace or a right is the same for all that follow.
    problems = [problem for obj in objects if (problem := await try_object(client, obj, overwrite=overwrite))]
    text, others = merge_settings(config["data"].get(CONFIG_KEY, ""), report.settings, namespace)
    if others and not overwrite:
        problems.extend(f"setting {line}; --overwrite replaces it" for line in others)
    if problems:
        more = f"\nand {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise Failure("nothing was applied:\n" + "\n".join(problems[:_SHOWN]) + more)
    # Objects before settings: a setting restarts the term of the controller, which then finds its queues.
    steps = [step async for step in installation.apply(client, objects, field_manager=FIELD_MANAGER)]
    return AppliedObjects([*steps, await write_settings_map(client, namespace, config, text)], left)


_MOVED: Final = ("Cohort", "ClusterQueue", "LocalQueue")


def place_in_namespace(obj: Json, namespace: str) -> Json:
    """An object that names no namespace goes to that of the context."""
    if not resource_of(obj).namespaced or obj["metadata"].get("namespace"):
        return obj
    # As kubectl does with a manifest that names none.
    return obj | {"metadata": obj["metadata"] | {"namespace": namespace}}


async def try_object(client: Client, obj: Json, *, overwrite: bool) -> str:
    """Why an object cannot be applied; "" where it can."""
    resource, metadata = resource_of(obj), obj["metadata"]
    namespace = metadata.get("namespace", "") if resource.namespaced else ""
    title = f"{obj['kind']} {namespace}{'/' * bool(namespace)}{metadata['name']}"
    try:
        before = await read(client, resource, metadata["name"], namespace)
        after = await client.apply(resource, obj, field_manager=FIELD_MANAGER, dry_run=True)
    except Forbidden:
        raise
    except KubeError as error:
        return f"{title}: {error}"
    if before is None or overwrite:
        return ""
    differing = [
        key
        for key in sorted(before.keys() | after.keys())
        if key not in _NOT_COMPARED and (before.get(key) != after.get(key))
    ]
    if not differing:
        return ""
    where = ", ".join(list_differences(before, after, differing))
    return f"{title}: there is one already, which differs in {where}; --overwrite replaces it"


_NOT_COMPARED: Final = frozenset({"apiVersion", "kind", "metadata", "status"})


def list_differences(before: Json, after: Json, keys: list[str]) -> Iterator[str]:
    """``spec.resourceGroups``: fields one level below, where there is such a level."""
    for key in keys:
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from (f"{key}.{name}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))
        else:
            yield key


async def read_settings_map(client: Client, namespace: str) -> Json:
    """The ConfigMap with the settings. Raises Failure where there is none."""
    found = await read(client, CONFIG_MAPS, CONFIG_MAP, namespace)
    if found is None:
        raise Failure(
            f"ConfigMap {namespace}/{CONFIG_MAP} is not there: Topogate is not installed in namespace {namespace}; "
            "`topogate install` does that, or say -n NAMESPACE"
        )
    return found | {"data": found.get("data") or {}}


def merge_settings(text: str, settings: Json, namespace: str) -> tuple[str, list[str]]:
    """The text with the settings in it, and those of them that have another value so far.

    Comments stay where settings are only added. Raises Failure where the text, or what comes of it, is no settings.
    """
    source = f"ConfigMap {namespace}/{CONFIG_MAP}, key {CONFIG_KEY}"
    try:
        parse(text, source=source)
        values: dict[str, Any] = yaml.safe_load(text) or {}
        wanted = {key: value for key, value in settings.items() if values.get(key, _ABSENT) != value}
        if not wanted:
            return text, []
        kept = [f"{key} is {values[key]}, and Kueue's is {value}" for key, value in wanted.items() if key in values]
        whole = values | wanted
        added = f"{text.rstrip()}\n{yaml.safe_dump(wanted, sort_keys=False)}".lstrip()
        # Appended lines are not of the same mapping where that one stands in braces.
        new = added if not kept and _is_mapping(added, whole) else yaml.safe_dump(whole, sort_keys=False)
        parse(new, source=source)
    except SettingsError as error:
        raise Failure(f"{error}; nothing was applied") from error
    return new, kept


_ABSENT: Final = object()


def tell_unset(text: str, settings: Json, namespace: str) -> str:
    """Which of Kueue's settings the text does not have, in a sentence; "" where it says something of each."""
    values = yaml.safe_load(text)
    # One that is there with another value was decided by somebody.
    if not (unset := sorted(settings.keys() - (values if isinstance(values, dict) else {}).keys())):
        return ""
    return (
        f"ConfigMap {namespace}/{CONFIG_MAP} does not say {some(unset)}, and Kueue's Configuration does, so Topogate's "
        "defaults hold: `topogate migrate kueue --apply` merges them"
    )


def _is_mapping(text: str, wanted: Json) -> bool:
    try:
        return bool(yaml.safe_load(text) == wanted)
    except yaml.YAMLError:
        return False


async def write_settings_map(client: Client, namespace: str, config: Json, text: str) -> InstallStep:
    """Write the settings, where they are others. Raises Failure where somebody else does at the same time."""
    if config["data"].get(CONFIG_KEY, "") == text:
        return InstallStep("ConfigMap", CONFIG_MAP, namespace, "unchanged")
    # The version as a precondition: somebody may edit the settings at this moment.
    body = {"metadata": {"resourceVersion": config["metadata"]["resourceVersion"]}, "data": {CONFIG_KEY: text}}
    try:
        await client.patch(CONFIG_MAPS, CONFIG_MAP, namespace, body=body, field_manager=FIELD_MANAGER)
    except Conflict as error:
        raise Failure(f"ConfigMap {namespace}/{CONFIG_MAP} was changed meanwhile: run the command again") from error
    return InstallStep("ConfigMap", CONFIG_MAP, namespace, "configured")
