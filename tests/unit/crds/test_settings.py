import pytest

from crds.constants import DEFAULT_DOMAIN
from crds.settings import Settings, SettingsError, from_mapping, load, load_good, parse, read_good, right_parts
from engine.model import NODES_PER_OPENED_DOMAIN
from engine.numa.score import ALIGNMENT_OVER_PACKING, AlignmentOverPacking, ZoneScore
from engine.preemption.model import ChoiceRules, Landing, Strategy
from queueing.model import RunTime, UseRules
from ungater.cache.rules import device_resources, queue_rules, victim_rules


def test_defaults_are_valid_and_give_the_keys():
    settings = load(env={})
    assert settings == Settings()
    assert settings.keys.gate == f"{DEFAULT_DOMAIN}/topology"


def test_scores_and_alignment_are_those_of_the_engine():
    assert Settings().alignment_over_packing == ALIGNMENT_OVER_PACKING
    for over in AlignmentOverPacking:
        assert from_mapping({"alignmentOverPacking": str(over)}).alignment_over_packing == over
    assert Settings().nodes_per_opened_domain == NODES_PER_OPENED_DOMAIN
    for score in ZoneScore:
        assert from_mapping({"numaScore": str(score)}).numa_score == score


def test_file_then_environment(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("domain: topogate.dev\nungateConcurrency: 8\nleaseSeconds: 20\n")
    env = {"TOPOGATE_UNGATE_CONCURRENCY": "16", "TOPOGATE_LEADER_ELECTION": "false", "TOPOGATE_UNRELATED": "x"}
    settings = load(file, env)
    assert (settings.domain, settings.ungate_concurrency, settings.lease_seconds) == ("topogate.dev", 16, 20.0)
    assert settings.leader_election is False


def test_an_empty_file_means_defaults(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("# nothing yet\n")
    assert load(file, {}) == Settings()


def mapped(*names, classes=("gpu.example.com",), **more):
    """Mappings of these names, of the same classes; of its own each where there are none."""
    return {
        "deviceClassMappings": [
            {"name": name, "deviceClassNames": [f"of-{number}"] if classes is None else list(classes), **more}
            for number, name in enumerate(names)
        ]
    }


@pytest.mark.parametrize(
    ("values", "env", "parts"),
    [
        ({"ungateBatchSecond": 1}, {}, ("f.yaml: ungateBatchSecond", "unknown", "ungateBatchSeconds")),
        ({"ungateConcurrency": 0}, {}, ("f.yaml: ungateConcurrency", "found 0")),
        ({"domain": "Not_A_Domain"}, {}, ("domain", "Not_A_Domain")),
        ({"logFormat": "xml"}, {}, ("logFormat", "json", "xml")),
        ({"leaseSeconds": 4}, {}, ("leaseRenewSeconds < two thirds of leaseSeconds",)),
        ({"certificateDays": 30}, {}, ("certificateRenewDays < certificateDays",)),
        ({"preemptionAcross": 0.7}, {}, ("preemptionSameSocket >= preemptionAcross",)),
        ({"preemptionAlpha": 2}, {}, ("preemptionAlpha", "found 2")),
        ({}, {"TOPOGATE_WEBHOOK_PORT": "70000"}, ("environment variable TOPOGATE_WEBHOOK_PORT", "webhookPort")),
        ({"numaIgnoredResources": ["a b"]}, {}, ("numaIgnoredResources", "a b")),
        ({"usageLabels": ["team", "a b"]}, {}, ("usageLabels.1", "a b")),
        ({}, {"TOPOGATE_USAGE_LABELS": "a,b,c,d,e"}, ("TOPOGATE_USAGE_LABELS", "usageLabels", "at most 4")),
        ({"numaScore": "Most"}, {}, ("numaScore", "MostAllocated", "Most")),
        ({"nodesPerOpenedDomain": -1}, {}, ("nodesPerOpenedDomain", "found -1")),
        ({"alignmentOverPacking": "Racks"}, {}, ("alignmentOverPacking", "UsedDomains", "Racks")),
        ({}, {"TOPOGATE_DEVICE_ANNOTATIONS": "["}, ("TOPOGATE_DEVICE_ANNOTATIONS", "deviceAnnotations")),
        ({"deviceClassMappings": [{"name": "gpus"}]}, {}, ("deviceClassMappings", "is missing")),
        ({"fairUseHalfLifeSeconds": 0}, {}, ("fairUseHalfLifeSeconds", "more than 0")),
        ({"fairUseHalfLifeSeconds": "inf"}, {}, ("fairUseHalfLifeSeconds", "31536000")),
        ({"fairUseSamplingSeconds": -1}, {}, ("fairUseSamplingSeconds", "more than 0")),
        ({"fairUseResourceWeights": {"cpu": -1}}, {}, ("fairUseResourceWeights.cpu", "at least 0")),
        ({"fairUseResourceWeights": {"cpu": "nan"}}, {}, ("fairUseResourceWeights.cpu", "a number")),
        ({"fairUseResourceWeights": {"c p u": 1}}, {}, ("fairUseResourceWeights", "the name of a resource")),
        ({"fairUseResourceWeights": [1]}, {}, ("fairUseResourceWeights", "`key: value` lines")),
        (mapped("cpu"), {}, ("deviceClassMappings", "nodes have themselves", "cpu")),
        (mapped("hugepages-2Mi"), {}, ("deviceClassMappings", "hugepages-2Mi")),
        (mapped("a/b/c"), {}, ("deviceClassMappings", "a/b/c")),
        (mapped("gpus", classes=["Gpu"]), {}, ("deviceClassMappings", "Gpu")),
        (mapped("gpus", classes=[]), {}, ("deviceClassMappings", "at least 1")),
        (mapped("gpus", classes=[f"c{n}" for n in range(9)]), {}, ("deviceClassMappings", "8")),
        (mapped(*(f"r{n}" for n in range(17)), classes=None), {}, ("deviceClassMappings", "16")),
        (mapped("gpus", "gpus", classes=None), {}, ("deviceClassMappings", "gpus is there twice")),
        (mapped("gpus", "nics"), {}, ("deviceClassMappings", "gpu.example.com is there twice")),
        (mapped("gpus", sources=[]), {}, ("deviceClassMappings", "sources")),
        ({}, {"TOPOGATE_LEASE_SECONDS": "soon"}, ("TOPOGATE_LEASE_SECONDS", "number", "soon")),
    ],
)
def test_a_wrong_setting_is_named(values, env, parts):
    with pytest.raises(SettingsError) as refused:
        from_mapping(values, source="f.yaml", env=env)
    for part in parts:
        assert part in str(refused.value)


def test_lists_come_from_the_file_or_a_variable():
    assert load(env={"TOPOGATE_NUMA_IGNORED_RESOURCES": "memory, cpu"}).numa_ignored_resources == ("memory", "cpu")
    given = from_mapping({"numaIgnoredResources": ["cpu"], "deviceAnnotations": []})
    assert (given.numa_ignored_resources, given.device_annotations) == (("cpu",), ())
    text = '[{"resource": "nvidia.com/gpu", "key": "nvidia.com/use-gpuuuid", "value": "id"}]'
    (rule,) = load(env={"TOPOGATE_DEVICE_ANNOTATIONS": text}).device_annotations
    assert (rule.resource, rule.key, rule.value) == ("nvidia.com/gpu", "nvidia.com/use-gpuuuid", "id")


def test_device_classes_are_mapped_to_resources_of_queues():
    text = '[{"name": "example.com/gpus", "deviceClassNames": ["gpu.example.com", "mig"]}]'
    settings = load(env={"TOPOGATE_DEVICE_CLASS_MAPPINGS": text})
    assert device_resources(settings) == {"gpu.example.com": "example.com/gpus", "mig": "example.com/gpus"}
    assert device_resources(Settings()) == {}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("- a\n- b\n", "key: value"),
        ("a: [", "not YAML"),
        ("a: 2024-99-99\n", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "alias"),
        ("#" * 70_000, "at most 65536 characters"),
        ("1: 2\n", "key: value"),
    ],
)
def test_a_file_of_another_shape_is_named(tmp_path, text, part):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=part) as refused:
        load(file, {})
    assert str(file) in str(refused.value)


def test_a_named_file_must_exist(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "nowhere.yaml", {})


def test_preemption_as_the_engine_takes_it():
    assert victim_rules(Settings()) == ChoiceRules()
    found = victim_rules(Settings(preemption_strategy="IncrementalMinimal", preemption_same_socket=0.25))
    assert found.strategy is Strategy.INCREMENTAL_MINIMAL
    assert found.scoring.topology(Landing.SOCKET) == 0.25


def test_what_is_set_without_anybody_s_word_may_be_set():
    """Commands that set options pass all settings on, those that are as they were too."""
    plain = Settings()
    assert Settings.model_validate(plain.model_dump()) == plain


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("requireQeue", "requireQeue: unknown setting; did you mean requireQueue?"),
        ("RequireQueue", "did you mean requireQueue?"),
        ("lease-seconds", "did you mean leaseSeconds?"),
        ("color", "color: unknown setting; docs/api.md lists them all"),
        ("x" * 500, "unknown setting"),
    ],
)
def test_an_unknown_setting_is_told_with_the_nearest_known_one(key, said):
    with pytest.raises(SettingsError) as refused:
        parse(f"{key}: true\n", source="f.yaml")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 200, "no list of all settings"


def test_a_value_of_any_size_is_told_in_a_line():
    with pytest.raises(SettingsError) as refused:
        parse(f"numaScore: [{'x, ' * 9000}]\n", source="f.yaml")
    assert len(str(refused.value)) < 400


def test_wrong_settings_of_a_mounted_config_map_give_way_to_the_last_good_ones(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("requireQeue: true\n")
    with pytest.raises(SettingsError, match="requireQeue"):
        load_good(file, {})
    (tmp_path / "last-good.yaml").write_text("domain: topogate.dev\n")
    found = load_good(file, {})
    assert (found.settings.domain, found.text) == ("topogate.dev", "domain: topogate.dev\n")
    assert "did you mean requireQueue?" in found.problem
    file.write_text("domain: example.com\n")
    assert load_good(file, {}) == (Settings(domain="example.com"), "domain: example.com\n", "")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("requireQueue: true\nrequireQueue: false\n", "requireQueue"),
        ("requireQueue: true\nrequire_queue: false\n", "requireQueue"),
        ("deviceAnnotations:\n- {resource: a, resource: b}\n", "resource"),
    ],
)
def test_a_setting_that_is_given_twice_is_told(text, key):
    with pytest.raises(SettingsError, match=f"^f.yaml: {key}: is given twice"):
        parse(text, source="f.yaml")


def test_last_good_settings_of_0_2_0_count_though_one_is_given_twice():
    """It took the last of the two."""
    text = "requireQueue: false\nrequireQueue: true\n"
    found = read_good(text, text, source="f.yaml", env=None)
    assert found.settings == Settings(require_queue=True)
    assert "given twice" in found.problem


@pytest.mark.parametrize("wrong", ["requireQeue: true", "leaseSeconds: 1", "logFormat: []"])
def test_whoever_only_looks_goes_by_what_is_right_in_wrong_settings(wrong):
    assert right_parts(f"{wrong}\ndomain: topogate.dev\n") == Settings(domain="topogate.dev")
    assert right_parts("a: [") == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ungateConcurrency: many", 'ungateConcurrency: expected a whole number, found "many"'),
        ("leaseSeconds: soon", 'leaseSeconds: expected a number, found "soon"'),
        ("leaseSeconds: 90000", "leaseSeconds: expected at most 86400, found 90000"),
        ("leaderElection: maybe", 'leaderElection: expected true or false, found "maybe"'),
        ("domain: 3", "domain: expected text, found 3"),
        (
            "domain: Not_A",
            'domain: expected lower-case letters, digits, dashes and dots, as in topogate.dev, found "Not_A"',
        ),
        ("numaIgnoredResources: 3", "numaIgnoredResources: expected a list, found 3"),
        ("usageLabels: [a b]", 'usageLabels.0: expected the key of a label, as in example.com/team, found "a b"'),
        ("logFormat: xml", 'logFormat: expected one of json, console or auto, found "xml"'),
        ("deviceClassMappings: [x]", 'deviceClassMappings.0: expected `key: value` lines, found "x"'),
        ("deviceClassMappings: [{name: gpus}]", "deviceClassMappings.0.deviceClassNames: is missing"),
        ("- a", 'expected `key: value` lines, found ["a"]'),
        ("webhookUrl:", "webhookUrl: expected text, found nothing"),
        ("a: [", "is not YAML: line 1, column 5: expected the node content, but found '<stream end>'"),
    ],
)
def test_what_is_wrong_is_told_without_words_of_python(text, said):
    with pytest.raises(SettingsError) as refused:
        parse(text, source="f.yaml")
    assert str(refused.value) == f"f.yaml: {said}"


def test_how_long_workloads_run_at_least_is_a_rule_of_the_queues():
    assert queue_rules(Settings()).minimum == RunTime(within=0, reclaim=0, fair=None)
    said = {"minimumRunTimeWithinClusterQueueSeconds": 1, "minimumRunTimeReclaimSeconds": 2}
    found = from_mapping(said | {"minimumRunTimeFairSharingSeconds": 0})
    assert queue_rules(found).minimum == RunTime(within=1, reclaim=2, fair=0)


def test_how_use_over_time_is_counted():
    assert queue_rules(Settings()).use is None
    env = {"TOPOGATE_FAIR_USE_HALF_LIFE_SECONDS": "600", "TOPOGATE_FAIR_USE_RESOURCE_WEIGHTS": "{cpu: 0.5, memory: 1}"}
    found = queue_rules(load(env=env)).use
    assert found == UseRules(half_life=600.0, sampling=None, weights={"cpu": 0.5, "memory": 1.0})
    assert found is not None
    weights = [
        found.weight_of(one) for one in ("cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi", "ephemeral-storage")
    ]
    assert weights == [0.5, 1.0, 1.0, 0.0, 0.0], "bytes drown all else, unless somebody wants it"
    assert queue_rules(from_mapping({"fairUseHalfLifeSeconds": 600, "fairUseSamplingSeconds": 300})).use == UseRules(
        half_life=600.0, sampling=300.0
    )
