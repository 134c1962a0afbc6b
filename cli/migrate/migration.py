"""From what was read to the report: Kueue's objects, its Configuration, and jobs that stay as they are."""

from collections.abc import Sequence

from cli.cluster.dump import FoundObject
from cli.migrate.conversion import CONFIG_GROUP
from cli.migrate.convert import convert_all, is_of_kueue
from cli.migrate.convert_settings import assumed_settings, convert_settings
from cli.migrate.judge_workloads import judge_workload
from cli.migrate.rows import Json, MigrationReport, Row
from cli.migrate.source_objects import KueueObjectsRead
from cli.output import Failure


def migrate_objects(read: KueueObjectsRead, without_checks: Sequence[str] = ()) -> MigrationReport:
    """Convert all that was read. Raises Failure where there are several Configurations."""
    ours = [one for one in read.found if is_of_kueue(one)]
    configurations = [one for one in read.found if one.api_group == CONFIG_GROUP]
    others = [one for one in read.found if not is_of_kueue(one) and one.api_group != CONFIG_GROUP]
    objects, rows = convert_all(ours, without_checks)
    settings, told = find_settings(read, configurations)
    about_jobs = [row for one in others for row in judge_workload(one)]
    return MigrationReport(objects, settings, [*read.rows, *rows, *told, *about_jobs], of_workloads=len(about_jobs))


def find_settings(read: KueueObjectsRead, configurations: Sequence[FoundObject]) -> tuple[Json, list[Row]]:
    """The settings of the one Configuration, and its rows. Raises Failure where there are several."""
    if len(configurations) > 1:
        files = " and ".join(one.file for one in configurations[:2])
        raise Failure(f"there are {len(configurations)} Configurations of Kueue, in {files}: give the one in use")
    if configurations:
        return convert_settings(configurations[0])
    return assumed_settings(read.no_configuration) if read.no_configuration else ({}, [])
