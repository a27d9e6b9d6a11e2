{{/*
Variables of the tuning values of each role; this file has the only mapping. An unset value keeps the
default of the binary, or the value in `config`.
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
Termination grace period: ten seconds for the drain of a process, fifteen for slow nodes, and for a
gateway the delay during which it still accepts requests.
*/}}
{{- define "faultline.graceSeconds" -}}
{{- $delay := 0 -}}
{{- if eq (index . 1) "gateway" -}}
{{- $delay = div (add (int64 (index . 0).Values.gateway.drainDelayMs) 999) 1000 -}}
{{- end -}}
{{- add 25 $delay -}}
{{- end -}}
