{{/* A pool merged with workerDefaults, as JSON. */}}
{{- define "faultline.pool" -}}
{{- $top := index . 0 -}}
{{- $pool := mergeOverwrite (deepCopy $top.Values.workerDefaults) (index . 1) -}}
{{- /* The command `worker` is that of the binary; a user-written worker has none. */ -}}
{{- if and $pool.image.repository (not (hasKey (index . 1) "args")) -}}
{{- $_ := set $pool "args" list -}}
{{- end -}}
{{- $pool | toJson -}}
{{- end -}}

{{/* Checks that the schema cannot express. */}}
{{- define "faultline.check" -}}
{{- if and (gt (int .Values.coordinator.replicas) 1) (ne .Values.store.kind "postgres") -}}
{{- fail "coordinator.replicas: SQLite has one coordinator; set store.kind to postgres, or replicas to 1" -}}
{{- end -}}
{{- if eq .Values.store.kind "sqlite" -}}
{{- range $key := list "leaseMs" "storeConnections" -}}
{{- if index $.Values.coordinator $key -}}
{{- fail (printf "coordinator.%s: it is for several coordinators on one database; set store.kind to postgres, or leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $signs := or .Values.gateway.cardKeySecret.name (regexMatch "(?m)^\\s*card_key\\s*=" .Values.config) -}}
{{- $public := or .Values.gateway.publicUrl (regexMatch "(?m)^\\s*public_url\\s*=" .Values.config) -}}
{{- if and $signs (not $public) -}}
{{- fail "gateway.publicUrl: cards that are signed name the address that clients use, or they would be signed for any Host; set it, such as https://mesh.example" -}}
{{- end -}}
{{- if and .Values.gateway.cardKeySecret.name (not .Values.gateway.cardKeyId) -}}
{{- fail "gateway.cardKeyId: name the key, so that verifiers find its public half" -}}
{{- end -}}
{{- $names := dict -}}
{{- $scaled := dict -}}
{{- range .Values.workers -}}
{{- $pool := include "faultline.pool" (list $ .) | fromJson -}}
{{- if hasKey $names $pool.name -}}
{{- fail (printf "workers: two pools are called %s" $pool.name) -}}
{{- end -}}
{{- $_ := set $names $pool.name true -}}
{{- $by := $pool.autoscaling.by -}}
{{- if gt (int $pool.autoscaling.min) (int $pool.autoscaling.max) -}}
{{- fail (printf "workers: pool %s: autoscaling.min is above autoscaling.max" $pool.name) -}}
{{- end -}}
{{- if and (eq $by "hpa") (lt (int $pool.autoscaling.min) 1) -}}
{{- fail (printf "workers: pool %s: an HPA does not scale to none; set autoscaling.min to 1 or more, or autoscaling.by to keda" $pool.name) -}}
{{- end -}}
{{- if and (eq $by "keda") (gt (len $pool.agents) 64) -}}
{{- fail (printf "workers: pool %s: KEDA asks for 64 agents at most; use several pools" $pool.name) -}}
{{- end -}}
{{- if ne $by "none" -}}
{{- range $agent := $pool.agents -}}
{{- if hasKey $scaled $agent -}}
{{- fail (printf "workers: agent %s is scaled in the pools %s and %s: both would start workers for the same tasks" $agent (get $scaled $agent) $pool.name) -}}
{{- end -}}
{{- $_ := set $scaled $agent $pool.name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
