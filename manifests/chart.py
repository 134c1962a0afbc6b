"""The Helm chart's templates, from the manifests that kustomize and ``topogate install`` take.

Each source stays readable text: the domain and the namespace are replaced as words, and what values decide is replaced
line by line. An edit that does not meet its lines fails: a changed manifest never loses a value silently.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from crds.constants import DEFAULT_DOMAIN, NAMESPACE, SERVED
from manifests.render import LOCAL_WORDS

Edit = Callable[[str], str]

REPOSITORY = Path(__file__).parent.parent
CHART = REPOSITORY / "manifests" / "helm" / "topogate"
FOLDERS = (
    "crds",
    "manifests/base",
    "manifests/agent",
    "manifests/kueue",
    "manifests/beside-kueue",
    "manifests/cert-manager",
    "manifests/monitoring",
    "manifests/metrics-authentication",
    "manifests/default-queue",
    "manifests/default-queue-hint",
    "manifests/web",
)

CERT_MANAGER = '(eq .Values.certificates.source "cert-manager")'
AUTHENTICATED = '(eq .Values.metrics.authentication "kubernetes")'
_WORDS = {DEFAULT_DOMAIN: "{{ .Values.domain }}", NAMESPACE: "{{ .Release.Namespace }}"}
_NOT_IN_A_CHART = frozenset({"../../crds", "namespace.yaml"})  # crds is a folder of its own; helm makes the namespace


class ChartError(Exception):
    """A source that an edit does not fit any more."""


def templates() -> dict[Path, str]:
    """Path and text of every generated template. Raises ChartError."""
    return {_target(source): _template(source) for folder in FOLDERS for source in _sources(folder)}


def _sources(folder: str) -> list[str]:
    """The manifests of a kustomization, relative to the repository."""
    kustomization = yaml.safe_load((REPOSITORY / folder / "kustomization.yaml").read_text(encoding="utf-8"))
    left_out = _NOT_IN_A_CHART if folder == "manifests/base" else frozenset[str]()
    return [f"{folder}/{entry}" for entry in kustomization["resources"] if entry not in left_out]


def _target(source: str) -> Path:
    """Where a template goes: of the base by its own name, else with its folder's before it."""
    folder, name = source.split("/")[-2:]
    prefix = {"base": "", "bases": "crd-"}.get(folder, f"{folder}-")
    return CHART / "templates" / f"{prefix}{name}"


def _template(source: str) -> str:
    text = (REPOSITORY / source).read_text(encoding="utf-8")
    # Before anything puts braces of Helm's in: these are the ones to keep as text.
    text = re.sub(r"\{\{|\}\}", lambda match: f'{{{{ "{match[0]}" }}}}', text)  # of Prometheus' own templates
    # Both words in one pass: a replacement is not searched for the other word.
    text = LOCAL_WORDS.sub(lambda match: _WORDS[match[0]], text)
    folder = source.rsplit("/", 1)[0]
    # A file's edits stand in for its folder's; they do not add up. The same holds for `WHEN` below.
    for edit in EDITS.get(source, EDITS.get(folder, ())):
        try:
            text = edit(text)
        except ChartError as error:
            raise ChartError(f"{source}: {error}") from error
    header = f"# Generated from {source} by `make generate`. Do not edit.\n"
    condition = WHEN.get(source, WHEN.get(folder))
    return f"{header}{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else header + text


# --- edits -----------------------------------------------------------------------------------------------------------


def swap(old: str, new: str, *, count: int = 1) -> Edit:
    """Replace the whole lines ``old``, as they stand but for their indent, by ``new`` at the same indent."""
    wanted = old.splitlines()

    def edit(text: str) -> str:
        lines, out, index, met = text.splitlines(), list[str](), 0, 0
        while index < len(lines):
            indent = _indent(lines[index])
            # The whole lines have to be equal: a comment behind a key is part of what an edit names.
            if lines[index : index + len(wanted)] == _shifted(wanted, indent):
                out += _shifted(new.splitlines(), indent)
                # The new lines are not looked at again, so an edit may put its own `old` back with more below it.
                index, met = index + len(wanted), met + 1
            else:
                out.append(lines[index])
                index += 1
        return _checked(out, met, count, old)

    return edit


def word(old: str, new: str) -> Edit:
    """Replace a word wherever it stands; it has to stand somewhere."""

    def edit(text: str) -> str:
        if old not in text:
            raise ChartError(f"expected {old!r} somewhere; adapt manifests/chart.py")
        return text.replace(old, new)

    return edit


def block(old: str, new: str, *, count: int = 1) -> Edit:
    """Replace the lines ``old``, each with all that is below it, by ``new``."""

    def edit(text: str) -> str:
        lines, out, index, met = text.splitlines(), list[str](), 0, 0
        while index < len(lines):
            indent, matches = _indent(lines[index]), lines[index].strip() == old
            if not matches:
                out.append(lines[index])
            index += 1
            if matches:
                # What is below is not compared: it may change in the source, and the chart's value replaces it all the
                # same.
                index, met = _end_of_block(lines, index, indent), met + 1
                out += _shifted(new.splitlines(), indent)
        return _checked(out, met, count, old)

    return edit


def guarded(old: str, condition: str) -> Edit:
    """Keep the one list item that begins with the line ``old`` only where the condition holds."""

    def edit(text: str) -> str:
        lines = text.splitlines()
        # Found before the first insertion, which moves every later line. That is safe as `_checked` refuses a second
        # one.
        starts = [index for index, each in enumerate(lines) if each.strip() == old]
        for start in starts:
            end = start + 1
            while end < len(lines) and _indent(lines[end]) > _indent(lines[start]):
                end += 1
            lines[start:end] = [f"{{{{- if {condition} }}}}", *lines[start:end], "{{- end }}"]
        return _checked(lines, len(starts), 1, old)

    return edit


def document(line: str, condition: str) -> Edit:
    """Keep the one document of the file that has the line only where the condition holds."""

    def edit(text: str) -> str:
        documents = re.split(r"^---\n", text, flags=re.MULTILINE)
        found = [index for index, each in enumerate(documents) if line in each.splitlines()]
        for index in found:
            documents[index] = f"{{{{- if {condition} }}}}\n{documents[index]}{{{{- end }}}}\n"
        return _checked("---\n".join(documents).splitlines(), len(found), 1, line)

    return edit


def _end_of_block(lines: Sequence[str], index: int, indent: int) -> int:
    """The first line from ``index`` on that is not below a key at ``indent``; lists may stand at the key's indent."""
    while index < len(lines):
        here = _indent(lines[index])
        if here < indent or (here == indent and not lines[index].lstrip().startswith("- ")):
            break
        index += 1
    return index


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _shifted(lines: Sequence[str], indent: int) -> list[str]:
    """The lines at an indent, from which ``nindent N`` counts."""
    return [
        # Helm's nindent counts from the left edge, so the N of an edit grows by the indent at which it lands.
        " " * indent + re.sub(r"nindent (\d+)", lambda match: f"nindent {indent + int(match[1])}", each)
        for each in lines
    ]


def _checked(lines: Sequence[str], met: int, count: int, old: str) -> str:
    if met != count:
        raise ChartError(f"expected {count} times {old!r}, found {met}; adapt manifests/chart.py")
    return "\n".join(lines) + "\n"


# --- what values decide; how it is written is in templates/_helpers.tpl -----------------------------------------------


def _include(name: str, value: str = "", indent: int = 0) -> str:
    argument = f'(dict "root" . "own" .Values.{value})' if value else "."
    return f'{{{{- include "topogate.{name}" {argument} | nindent {indent} }}}}'


def _edit_template(component: str, priority: str, *, containers: int = 1) -> list[Edit]:
    """Edits of a pod template; the component's container is the one with nothing behind ``resources:``."""
    return [
        swap(
            "template:\n  metadata:\n    labels:",
            f"template:\n  metadata:\n    annotations:\n      {_include('annotations', component, 6)}\n    labels:\n"
            f"      {_include('labels', component, 6)}",
        ),
        swap(f"priorityClassName: {priority}", _include("scheduling", component)),
        swap("image: topogate:0.2.0", _include("image"), count=containers),
        block("resources:", f"resources:\n  {{{{- toYaml .Values.{component}.resources | nindent 2 }}}}"),
    ]


def _from(port: str, value: str) -> Edit:
    """Who may reach a port."""
    old = f"- ports:\n  - {port}"
    return swap(old, f"{old}\n  {_include('from', f'networkPolicy.{value}', 2)}")


def _metrics_from(count: int) -> Edit:
    """Who may read metrics."""
    return block(
        "from: # Prometheus, by the label of its namespace", _include("from", "networkPolicy.metricsFrom"), count=count
    )


def _either(authenticated: str, otherwise: str = "") -> str:
    """Lines for metrics that are authenticated, or for others."""
    other = f"{{{{- else }}}}\n{otherwise}\n" if otherwise else ""
    return f"{{{{- if {AUTHENTICATED} }}}}\n{authenticated}\n{other}{{{{- end }}}}"


def _labels(monitor: str, count: int) -> Edit:
    """More labels, by which a Prometheus selects what it reads."""
    own = f".Values.monitoring.{monitor}.labels"
    text = f"{_PART_OF}\n{{{{- with {own} }}}}\n{{{{- toYaml . | nindent 0 }}}}\n{{{{- end }}}}"
    return swap(_PART_OF, text, count=count)


def _api_server(count: int) -> Edit:
    return block("- ports: # the API server", _include("apiServer"), count=count)


_PART_OF = "app.kubernetes.io/part-of: topogate"
_ENV = "env: # by which replicas know of each other's certificates"
_AUTHENTICATES = "- name: TOPOGATE_METRICS_AUTHENTICATION\n  value: kubernetes"
_BEARER = "bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"
_OWN_AUTHORITY = ("  name: topogate-self-signed", "  name: topogate-ca", "  name: topogate")

_BESIDE = "{{- if .Values.kueue.beside }}"
_NOT_OURS = "- key: kubernetes.io/metadata.name\n  operator: NotIn\n  values: [{{ .Release.Namespace }}]"
_SERVED = f'- key: {SERVED}\n  operator: In\n  values: ["true"]'


def _narrowed(binding: str) -> Edit:
    """A binding that meets objects of served namespaces alone, beside Kueue."""
    wanted = "\n".join(f"    {line}" for line in _SERVED.splitlines())
    selector = f"matchResources:\n  namespaceSelector:\n    matchExpressions:\n{wanted}"
    return swap(binding, f"{binding}\n{_BESIDE}\n{selector}\n{{{{- end }}}}")


# By file or by folder.
EDITS: Mapping[str, Sequence[Edit]] = {
    "crds/bases": [
        swap(
            "kind: CustomResourceDefinition\nmetadata:",
            "kind: CustomResourceDefinition\nmetadata:\n  {{- if .Values.crds.keep }}\n  annotations:\n"
            "    helm.sh/resource-policy: keep\n  {{- end }}",
        )
    ],
    "manifests/base/config.yaml": [block("config.yaml: |", f"config.yaml: |\n  {_include('config', indent=2)}")],
    "manifests/base/rbac-webhook.yaml": [
        swap(
            "resourceNames: [topogate-webhook]\nverbs: [get, patch]",
            f"resourceNames: [topogate-webhook]\nverbs: [get{{{{ if not {CERT_MANAGER} }}}}, patch{{{{ end }}}}]",
        ),
        guarded(
            '- apiGroups: [""] # whether another replica is gone, before an old certificate authority is dropped',
            f"not {CERT_MANAGER}",
        ),
        guarded("- apiGroups: [events.k8s.io]", f"not {CERT_MANAGER}"),
        swap(
            "resources: [secrets]\nresourceNames: [topogate-webhook-cert]\nverbs: [get, patch]",
            "resources: [secrets]\nresourceNames: [topogate-webhook-cert]\n"
            f"verbs: [get{{{{ if not {CERT_MANAGER} }}}}, patch{{{{ end }}}}]",
        ),
        document("kind: Secret", f"not {CERT_MANAGER}"),
    ],
    "manifests/base/rbac-ungater.yaml": [
        swap(
            "- apiGroups: [events.k8s.io]\n  resources: [events]\n"
            "  verbs: [create, patch, list] # what kubelets say of a pod that does not start",
            "- apiGroups: [events.k8s.io]\n  resources: [events]\n"
            "  verbs: [create, patch, list] # what kubelets say of a pod that does not start\n"
            '{{- if .Values.settings.nominateGatedPods }}\n- apiGroups: [""]\n  resources: [pods/status]\n'
            "  verbs: [patch] # nominatedNodeName\n{{- end }}",
        )
    ],
    "manifests/base/policy-ungater.yaml": [
        swap(
            "expression: \"['BAIDU_COM_DEVICE_IDX']\"",
            'expression: {{ include "topogate.devices" . | quote }}',
        )
    ],
    "manifests/base/policy.yaml": [_narrowed("policyName: topogate-pods\nvalidationActions: [Deny]")],
    "manifests/base/policy-hints.yaml": [
        _narrowed("policyName: topogate-hints\nvalidationActions: [Warn]"),
        _narrowed("policyName: topogate-unread\nvalidationActions: [Warn]"),
    ],
    "manifests/default-queue-hint/policy.yaml": [_narrowed("policyName: topogate-default-hint")],
    "manifests/default-queue/policy.yaml": [_narrowed("policyName: topogate-default-queue")],
    "manifests/base/network.yaml": [
        _api_server(2),
        _from("{port: 9443, protocol: TCP} # admission reviews, from the API server", "webhookFrom"),
        _metrics_from(2),
    ],
    "manifests/base/webhook.yaml": [
        swap("replicas: 2", "replicas: {{ .Values.webhook.replicas }}"),
        *_edit_template("webhook", "system-cluster-critical"),
        swap(
            _ENV,
            f"{_ENV}\n{_either(_AUTHENTICATES)}\n{{{{- if {CERT_MANAGER} }}}}\n"
            "- name: TOPOGATE_CERTIFICATE_SOURCE\n  value: cert-manager\n{{- end }}",
        ),
    ],
    "manifests/base/ungater.yaml": [
        swap(
            "replicas: 2 # one leads, one waits for its lease",
            "replicas: {{ .Values.ungater.replicas }} # one leads, the others wait for its lease",
        ),
        *_edit_template("ungater", "system-cluster-critical"),
        swap("env:", f"env:\n{_either(_AUTHENTICATES)}"),
    ],
    "manifests/base/admission.yaml": [
        swap(_NOT_OURS, f"{_NOT_OURS}\n{_BESIDE}\n{_SERVED}\n{{{{- end }}}}", count=4),
        swap(
            "metadata:\n  name: topogate-webhook",
            f"metadata:\n  name: topogate-webhook\n  {{{{- if {CERT_MANAGER} }}}}\n  annotations:\n"
            f"    cert-manager.io/inject-ca-from: {{{{ .Release.Namespace }}}}/topogate-webhook\n  {{{{- end }}}}",
        ),
    ],
    "manifests/agent/network.yaml": [_api_server(1), _metrics_from(1)],
    "manifests/agent/daemonset.yaml": [
        *_edit_template("agent", "system-node-critical", containers=2),
        swap("env:", f"env:\n{_either(_AUTHENTICATES)}"),
        # The scheduling helper writes both from the values, whose defaults are what these lines say.
        block("nodeSelector:", ""),
        block("tolerations: # of all nodes, those with GPUs are tainted most often", ""),
        swap("path: /var/lib/kubelet", "path: {{ .Values.agent.kubeletDirectory }}"),
        swap("path: /var/lib/kubelet/pod-resources", "path: {{ .Values.agent.kubeletDirectory }}/pod-resources"),
    ],
    "manifests/web/network.yaml": [
        _api_server(1),
        _from("{port: 9444, protocol: TCP} # the page; who sees what is the API server's to say", "webFrom"),
        swap(
            'egress:\n{{- include "topogate.apiServer" . | nindent 0 }}',
            'egress:\n{{- include "topogate.apiServer" . | nindent 0 }}\n{{- with .Values.web.prometheus }}\n'
            '{{- $url := urlParse . }}\n{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) }}\n'
            '- ports: # Prometheus\n  - port: {{ $port | default (eq $url.scheme "https" | ternary "443" "80") }}\n'
            "    protocol: TCP\n{{- end }}",
        ),
    ],
    "manifests/web/deployment.yaml": [
        *_edit_template("web", "system-cluster-critical"),
        swap(
            "- --allowed-host=topogate-web.{{ .Release.Namespace }}.svc",
            "- --allowed-host=topogate-web.{{ .Release.Namespace }}.svc\n{{- range .Values.web.hosts }}\n"
            '- {{ printf "--allowed-host=%s" . | quote }}\n{{- end }}\n{{- if .Values.web.tlsSecret }}\n'
            "- --tls-certificate=/etc/topogate-tls/tls.crt\n- --tls-key=/etc/topogate-tls/tls.key\n{{- end }}\n"
            '{{- with .Values.web.clusterName }}\n- {{ printf "--cluster-name=%s" . | quote }}\n{{- end }}\n'
            '{{- with .Values.web.prometheus }}\n- {{ printf "--prometheus=%s" . | quote }}\n{{- end }}',
        ),
        swap(
            "volumeMounts:",
            "volumeMounts:\n{{- if .Values.web.tlsSecret }}\n- name: tls\n  mountPath: /etc/topogate-tls\n"
            "  readOnly: true\n{{- end }}",
        ),
        swap(
            "volumes:",
            "volumes:\n{{- if .Values.web.tlsSecret }}\n- name: tls\n  secret:\n"
            "    secretName: {{ .Values.web.tlsSecret }}\n{{- end }}",
        ),
    ],
    "manifests/monitoring/services.yaml": [
        swap(
            "port: 8081\ntargetPort: health",
            _either("port: 8443\ntargetPort: metrics", "port: 8081\ntargetPort: health"),
            count=2,
        ),
        document("  name: topogate-agent-metrics", ".Values.agent.enabled"),
    ],
    "manifests/monitoring/monitors.yaml": [
        # The counts are of documents in the file: one that is added fails here until it gets its labels.
        _labels("serviceMonitor", 3),
        swap("scheme: https", f"scheme: https\n{_either(_BEARER)}"),
        swap(
            "scheme: http",
            # Ungater and agent sign their metrics certificate themselves, so Prometheus has no CA to check it by.
            _either(f"scheme: https\ntlsConfig:\n  insecureSkipVerify: true\n{_BEARER}", "scheme: http"),
            count=2,
        ),
        document("  name: topogate-agent", ".Values.agent.enabled"),
        word("interval: 30s", "interval: {{ .Values.monitoring.serviceMonitor.interval }}"),
    ],
    "manifests/monitoring/alerts.yaml": [
        _labels("prometheusRule", 1),
        word("docs/alerts.md#", "{{ .Values.monitoring.prometheusRule.runbookUrl }}#"),
    ],
    "manifests/cert-manager/certificate.yaml": [
        swap("duration: 2160h", "duration: {{ .Values.certificates.certManager.duration }}"),
        swap("renewBefore: 720h", "renewBefore: {{ .Values.certificates.certManager.renewBefore }}"),
        block("issuerRef: # the authority above", f"issuerRef:\n  {_include('issuer', indent=2)}"),
        # With an issuer of the user's, the authority that cert-manager makes for Topogate would sign nothing.
        *(document(name, "not .Values.certificates.certManager.issuerRef") for name in _OWN_AUTHORITY),
    ],
}

_MUTATING_POLICY = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
WHEN: Mapping[str, str] = {
    "crds/bases": ".Values.crds.install",
    "manifests/agent": ".Values.agent.enabled",
    "manifests/kueue": "or .Values.kueue.enabled .Values.kueue.beside",
    "manifests/beside-kueue": ".Values.kueue.beside",
    "manifests/base/network.yaml": ".Values.networkPolicy.enabled",
    "manifests/agent/network.yaml": "and .Values.agent.enabled .Values.networkPolicy.enabled",
    "manifests/web": ".Values.web.enabled",
    # A file's condition stands in for its folder's, so it has to name both.
    "manifests/web/network.yaml": "and .Values.web.enabled .Values.networkPolicy.enabled",
    "manifests/cert-manager": CERT_MANAGER,
    "manifests/monitoring": ".Values.monitoring.serviceMonitor.enabled",
    "manifests/metrics-authentication": AUTHENTICATED,
    "manifests/default-queue": f'.Capabilities.APIVersions.Has "{_MUTATING_POLICY}"',
    "manifests/default-queue-hint": f'not (.Capabilities.APIVersions.Has "{_MUTATING_POLICY}")',
    "manifests/monitoring/alerts.yaml": ".Values.monitoring.prometheusRule.enabled",
}
