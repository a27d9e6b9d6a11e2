{{/* The release, and what is part of it. */}}
{{- define "faultline.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a role. Call it with (list $ "gateway"), or with a pool's name behind. */}}
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

{{/* Of the image of a pool, or of the release where the pool has none. */}}
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
The names of the coordinators, which are those that their certificate is for. One stands for any of
them: KEDA asks there. The other lists them all: gateways and workers choose among them.
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

{{/* Ports inside of pods, by which the services and policies find them. */}}
{{- define "faultline.httpPort" -}}8080{{- end -}}
{{- define "faultline.hubPort" -}}8081{{- end -}}
{{- define "faultline.adminPort" -}}9464{{- end -}}
