{{/* Refuses values that the schema cannot refuse. Each message begins with the key. */}}
{{- define "agentk.validate" -}}
{{- if not .Values.config.kasAddress -}}
{{- fail "config.kasAddress: set the address of kas, as in wss://kas.example.com:8150" -}}
{{- end -}}
{{- if not (or .Values.config.token .Values.config.secretName) -}}
{{- fail "config.token: set config.token, or config.secretName" -}}
{{- end -}}
{{- if and .Values.config.token .Values.config.secretName -}}
{{- fail "config.token: set one of config.token and config.secretName, not both" -}}
{{- end -}}
{{- with .Values.rbac -}}
{{- if and (eq .scope "namespaces") (not .namespaces) -}}
{{- fail "rbac.namespaces: name the namespaces, because rbac.scope is namespaces" -}}
{{- end -}}
{{- if and (eq .scope "cluster") .namespaces -}}
{{- fail "rbac.namespaces: the rights are for the whole cluster, because rbac.scope is cluster" -}}
{{- end -}}
{{- if and (eq .scope "namespaces") .impersonate -}}
{{- fail "rbac.impersonate: users and groups have no namespace, so it needs rbac.scope cluster" -}}
{{- end -}}
{{- end -}}
{{- $names := dict -}}
{{- range .Values.prometheus.servers -}}
{{- $name := .name | default "" -}}
{{- if hasKey $names $name -}}
{{- fail (printf "prometheus.servers: two servers have the name %q" $name) -}}
{{- end -}}
{{- $_ := set $names $name true -}}
{{- if and .tokenSecret .basicAuthSecret -}}
{{- fail (printf "prometheus.servers: %q has tokenSecret and basicAuthSecret; set one" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
