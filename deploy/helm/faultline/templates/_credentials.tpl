{{/*
Credentials for the port of the coordinator: one for the gateways, one for each pool of workers, and
one for operators if set. The coordinator gets digests only, and no token.
*/}}

{{/* The secret with the credential of a pool. */}}
{{- define "faultline.poolSecret" -}}
{{- .meshSecret | default (printf "faultline-mesh-worker-%s" .name) -}}
{{- end -}}

{{/* Every credential as JSON: secret, role, name, and the agents that a worker may offer. */}}
{{- define "faultline.credentials" -}}
{{- include "faultline.check" . -}}
{{- $all := list (dict "secret" .Values.mesh.gatewaySecret "role" "gateway" "name" "gateway") -}}
{{- with .Values.mesh.operatorSecret -}}
{{- $all = append $all (dict "secret" . "role" "operator" "name" "operator") -}}
{{- end -}}
{{- range .Values.workers -}}
{{- $pool := include "faultline.pool" (list $ .) | fromJson -}}
{{- $agents := concat $pool.agents $pool.alsoOffers | uniq -}}
{{- $name := printf "worker-%s" $pool.name -}}
{{- $secret := include "faultline.poolSecret" $pool -}}
{{- $all = append $all (dict "secret" $secret "role" "worker" "name" $name "agents" $agents) -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $all -}}
{{- if hasKey $seen .secret -}}
{{- fail (printf "the credentials of %s and %s are both in the secret %s: each role and each pool of workers has its own" (get $seen .secret) .name .secret) -}}
{{- end -}}
{{- $_ := set $seen .secret .name -}}
{{- end -}}
{{- $all | toJson -}}
{{- end -}}

{{/* Kubernetes replaces $(NAME) by the variable with the digest. */}}
{{- define "faultline.credentialEnv" -}}
{{- $entries := list -}}
{{- range $at, $one := include "faultline.credentials" . | fromJsonArray }}
- name: MESH_SHA256_{{ $at }}
  valueFrom:
    secretKeyRef: { name: {{ $one.secret }}, key: sha256 }
{{- $entry := printf `role = "%s", name = "%s", sha256 = "$(MESH_SHA256_%d)"` $one.role $one.name (int $at) }}
{{- with $one.agents }}{{ $entry = printf `%s, agents = %s` $entry (toJson .) }}{{ end }}
{{- $entries = append $entries (printf "{ %s }" $entry) }}
{{- end }}
- name: FAULTLINE_MESH__CREDENTIAL
  value: {{ printf "[%s]" (join ", " $entries) | quote }}
{{- end -}}
