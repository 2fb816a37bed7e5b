{{/* Gives missing values their defaults, at the begin of each template. `helm upgrade --reuse-values` passes the values of the installed
chart, which may have fewer keys. Objects of Kubernetes stay as they are, because null removes a default there. */}}
{{- define "agentk.defaults" -}}
{{- include "agentk.fill" (list .Values (.Files.Get "defaults.json" | fromJson)) -}}
{{- end -}}

{{- define "agentk.fill" -}}
{{- $values := index . 0 -}}
{{- range $key, $default := index . 1 -}}
{{- if not (hasKey $values $key) -}}
{{- $_ := set $values $key $default -}}
{{- else if and (kindIs "map" $default) (not (has $key (list "behavior" "labels" "podSecurityContext" "resources" "securityContext" "strategy"))) -}}
{{- include "agentk.fill" (list (get $values $key) $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}
