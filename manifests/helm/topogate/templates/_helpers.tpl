{{- /* What the generated templates include. "own" is the part of the values that a component has for itself. */ -}}

{{- define "topogate.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
image: {{ printf "%s@%s" $image.repository $image.digest }}
{{- else -}}
image: {{ printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- with $image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "topogate.config" -}}
{{- $own := dict "domain" .Values.domain "namespace" .Release.Namespace -}}
{{- if .Values.kueue.beside }}{{- $_ := set $own "besideKueue" true }}{{- end -}}
{{- toYaml (merge $own .Values.settings) }}
{{- end }}

{{- /* Annotations that device plugins read, for the policy that lets the ungater write them. */ -}}
{{- define "topogate.devices" -}}
{{- $keys := list -}}
{{- range .Values.settings.deviceAnnotations | default (list (dict "key" "BAIDU_COM_DEVICE_IDX")) -}}
{{- $keys = append $keys (squote .key) -}}
{{- end -}}
[{{ $keys | uniq | sortAlpha | join ", " }}]
{{- end }}

{{- define "topogate.labels" -}}
{{- with .own.podLabels }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- /* Components read their settings at start, so other settings make new pods. */ -}}
{{- define "topogate.annotations" -}}
{{- $settings := ternary (toYaml .root.Values.agentSettings) (include "topogate.config" .root) (hasKey .own "kubeletDirectory") -}}
topogate.dev/settings: {{ $settings | sha256sum | trunc 16 | quote }}
{{- with .own.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "topogate.scheduling" -}}
{{- with .own.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .own.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "topogate.from" -}}
{{- with .own }}
from:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "topogate.apiServer" -}}
- ports:
  {{- range .Values.networkPolicy.apiServer.ports }}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .Values.networkPolicy.apiServer.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "topogate.issuer" -}}
{{- toYaml (.Values.certificates.certManager.issuerRef | default (dict "group" "cert-manager.io" "kind" "Issuer" "name" "topogate")) }}
{{- end }}
