{{/*
What a role is told beside its addresses: keys of the binary that values name, and here alone are
turned into its variables. What a value leaves unset is left to the binary, or to `config`.
*/}}

{{- define "faultline.gatewayTuning" -}}
- name: FAULTLINE_GATEWAY__DRAIN_DELAY_MS
  value: {{ .Values.gateway.drainDelayMs | int64 | quote }}
{{- with .Values.gateway.publicUrl }}
- name: FAULTLINE_GATEWAY__PUBLIC_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.gateway.cardKeyId }}
- name: FAULTLINE_GATEWAY__CARD_KEY_ID
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "faultline.coordinatorTuning" -}}
{{- with .Values.coordinator.keepEndedHours }}
- name: FAULTLINE_COORDINATOR__KEEP_ENDED_HOURS
  value: {{ . | int64 | quote }}
{{- end }}
{{- if eq .Values.store.kind "postgres" }}
{{- with .Values.coordinator.leaseMs }}
- name: FAULTLINE_COORDINATOR__LEASE_MS
  value: {{ . | int64 | quote }}
{{- end }}
{{- with .Values.coordinator.storeConnections }}
- name: FAULTLINE_COORDINATOR__STORE_CONNECTIONS
  value: {{ . | int64 | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
How long a pod has before it is killed: the ten seconds in which a process leaves by itself, fifteen
for the slowest of nodes, and for a gateway the time in which it still takes what comes.
*/}}
{{- define "faultline.graceSeconds" -}}
{{- $delay := 0 -}}
{{- if eq (index . 1) "gateway" -}}
{{- $delay = div (add (int64 (index . 0).Values.gateway.drainDelayMs) 999) 1000 -}}
{{- end -}}
{{- add 25 $delay -}}
{{- end -}}
