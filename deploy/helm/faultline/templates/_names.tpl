{{/* Names and labels of the release. */}}
{{- define "faultline.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The selector of the pods of a role. Arguments: (list $ "gateway"), and the name of a pool. */}}
{{- define "faultline.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ $top.Chart.Name }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- if gt (len .) 2 }}
faultline.dev/pool: {{ index . 2 }}
{{- end }}
{{- end -}}

{{- define "faultline.labels" -}}
{{- $top := index . 0 -}}
{{ include "faultline.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- end -}}

{{/* The image of a pool, by default that of the release. */}}
{{- define "faultline.image" -}}
{{- $top := index . 0 -}}
{{- $image := $top.Values.image -}}
{{- if gt (len .) 1 -}}
{{- with index . 1 }}{{ if .repository }}{{ $image = . }}{{ end }}{{ end -}}
{{- end -}}
{{- $tag := $image.tag -}}
{{- if and (not $tag) (eq $image.repository $top.Values.image.repository) -}}
{{- $tag = $top.Chart.AppVersion -}}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else if or (not $tag) (eq $tag "latest") -}}
{{- fail (printf "image %s: name a tag that stays what it is, or a digest" $image.repository) -}}
{{- else -}}
{{ $image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}

{{/*
Host names of the coordinators, which their certificate contains. One resolves to any coordinator, for
KEDA. The other resolves to all of them, for gateways and workers.
*/}}
{{- define "faultline.front" -}}
{{ include "faultline.fullname" . }}-coordinator.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "faultline.headless" -}}
{{ include "faultline.fullname" . }}-coordinator-headless.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "faultline.hubUrl" -}}
{{ if .Values.coordinator.tlsSecret }}https{{ else }}http{{ end }}://{{ include "faultline.headless" . }}:{{ include "faultline.hubPort" . }}
{{- end -}}

{{/* Ports inside of pods, which services and policies refer to. */}}
{{- define "faultline.httpPort" -}}8080{{- end -}}
{{- define "faultline.hubPort" -}}8081{{- end -}}
{{- define "faultline.adminPort" -}}9464{{- end -}}
