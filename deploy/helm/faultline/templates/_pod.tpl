{{/* The common parts of the pods of all roles. */}}

{{- define "faultline.podSpec" -}}
{{- $top := index . 0 -}}
{{- $stateful := and (eq (index . 1) "coordinator") (eq $top.Values.store.kind "sqlite") -}}
{{- with $top.Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
serviceAccountName: {{ include "faultline.fullname" $top }}-{{ index . 1 }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "faultline.graceSeconds" . }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- with $top.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $top.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $top.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    # A cluster may have fewer nodes than pods, so the spread over nodes is soft. Workers may start in any
    # zone with free capacity.
    {{- $strict := and (ne $key "kubernetes.io/hostname") (ne (index $ 1) "worker") }}
    whenUnsatisfiable: {{ $strict | ternary $top.Values.topologySpread "ScheduleAnyway" }}
    # A zone without usable nodes is ignored; otherwise new pods would stay pending.
    nodeTaintsPolicy: Honor
    labelSelector:
      matchLabels: {{ include "faultline.selector" $ | nindent 8 }}
    {{- if not $stateful }}
    # Pods of the old revision do not count during a rollout.
    matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
{{- end -}}

{{- define "faultline.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end -}}

{{- define "faultline.probes" -}}
startupProbe:
  httpGet: { path: /startupz, port: admin }
  periodSeconds: 2
  # A coordinator recovers all live tasks before it serves.
  failureThreshold: 150
livenessProbe:
  httpGet: { path: /livez, port: admin }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: admin }
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{/* Variables of every role: the configuration file and the OTLP endpoint. */}}
{{- define "faultline.commonEnv" -}}
- name: FAULTLINE_CONFIG
  value: /etc/faultline/faultline.toml
{{- with .Values.otlp.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: OTEL_METRICS_EXPORTER
  value: {{ $.Values.otlp.metrics | ternary "otlp" "none" | quote }}
{{- end }}
{{- end -}}

{{/* Variables of roles that dial the coordinator. Arguments: (list $ NAME), the secret of the role. */}}
{{- define "faultline.dialEnv" -}}
- name: FAULTLINE_MESH__TOKEN
  valueFrom:
    secretKeyRef: { name: {{ index . 1 }}, key: token }
{{- if (index . 0).Values.coordinator.tlsSecret }}
- name: FAULTLINE_MESH__CA
  value: /etc/faultline/ca/ca.crt
{{- end }}
{{- end -}}

{{- define "faultline.configMount" -}}
- name: config
  mountPath: /etc/faultline/faultline.toml
  subPath: faultline.toml
  readOnly: true
{{- end -}}

{{- define "faultline.configVolume" -}}
- name: config
  configMap: { name: {{ include "faultline.fullname" . }} }
{{- end -}}

{{- define "faultline.caMount" -}}
{{- if .Values.coordinator.tlsSecret }}
- name: ca
  mountPath: /etc/faultline/ca
  readOnly: true
{{- end }}
{{- end -}}

{{/* The CA from the secret of the coordinator, without the private key. */}}
{{- define "faultline.caVolume" -}}
{{- with .Values.coordinator.tlsSecret }}
- name: ca
  secret:
    secretName: {{ . }}
    items: [{ key: ca.crt, path: ca.crt }]
{{- end }}
{{- end -}}

{{/* The file with the CA of the database, which the store URL names as sslrootcert. */}}
{{- define "faultline.storeCa" -}}/etc/faultline/postgres/ca.crt{{- end -}}

{{/*
A budget for voluntary evictions. Unready pods may be evicted at any time: during a database outage no
coordinator is ready, and nodes must still be drained.
*/}}
{{- define "faultline.budget" }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 1 }}
  labels: {{ include "faultline.labels" (index . 2) | nindent 4 }}
spec:
  maxUnavailable: {{ index . 3 }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{ include "faultline.selector" (index . 2) | nindent 6 }}
{{- end }}

{{/* Pods restart when their configuration changes. */}}
{{- define "faultline.podAnnotations" -}}
checksum/config: {{ .Values.config | sha256sum }}
{{- end -}}
