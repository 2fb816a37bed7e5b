{{- define "kas.config.tls" -}}
{{- if include "kas.tlsSecret" . }}
certificate_file: /etc/kas/tls/tls.crt
key_file: /etc/kas/tls/tls.key
{{- end }}
{{- end -}}

{{/* The keys of a listener behind proxies. */}}
{{- define "kas.config.proxies" -}}
{{- with .Values.trustedProxies }}
trusted_proxies: {{ toJson . }}
{{- end }}
{{- if include "kas.proxyProtocol" . }}
proxy_protocol: v2
{{- end }}
{{- end -}}

{{- define "kas.config.defaults" -}}
agent:
  listen:
    address: 0.0.0.0:8150
    {{- include "kas.config.tls" . | nindent 4 }}
    {{- include "kas.config.proxies" . | nindent 4 }}
  kubernetes_api:
    {{- with .Values.ingress.wildcardHost }}
    hosts: [{{ trimPrefix "*" . | printf "{agent}%s" | quote }}]
    {{- end }}
    listen:
      address: 0.0.0.0:8154
      {{- include "kas.config.tls" . | nindent 6 }}
      {{- include "kas.config.proxies" . | nindent 6 }}
      {{- $late := has .Values.ingress.preset (list "gce" "alb") }}
      {{- $grace := .Values.shutdown.listenGracePeriod }}
      listen_grace_period: {{ eq $grace "auto" | ternary (ternary "20s" "5s" $late) $grace }}
      shutdown_grace_period: {{ .Values.shutdown.shutdownGracePeriod }}
observability:
  listen:
    address: 0.0.0.0:8151
{{- if .Values.web.enabled }}
web:
  listen:
    address: 0.0.0.0:8156
    {{- include "kas.config.tls" . | nindent 4 }}
    {{- with .Values.trustedProxies }}
    trusted_proxies: {{ toJson . }}
    {{- end }}
{{- end }}
{{- if and .Values.customConfig.api (include "kas.config.proxies" .) }}
api:
  listen:
    {{- include "kas.config.proxies" . | nindent 4 }}
{{- end }}
{{- if include "kas.redis" . }}
redis:
  {{- omit .Values.redis "existingSecret" | toYaml | nindent 2 }}
  {{- if .Values.redis.existingSecret }}
  password_file: /etc/kas/redis/password
  {{- end }}
private_api:
  # The secret authenticates requests between pods. Whoever does not trust the network of the pods sets certificates in
  # customConfig.private_api.listen.
  allow_plaintext: true
  listen:
    address: 0.0.0.0:8155
    authentication_secret_file: /etc/kas/private-api/secret
{{- end }}
identity:
  file: /etc/kas/identity/identity.yaml
disabled:
  file: /etc/kas/disabled/disabled.yaml
{{- end -}}

{{/* kas.yaml: what the chart writes, and customConfig merged over it. */}}
{{- define "kas.config" -}}
{{- mergeOverwrite (include "kas.config.defaults" . | fromYaml) (deepCopy .Values.customConfig) | toYaml -}}
{{- end -}}

{{/* The seconds that a pod has to stop: both periods of kas, and 15 for the last steps. */}}
{{- define "kas.gracePeriod" -}}
{{- $listen := (include "kas.config" . | fromYaml).agent.kubernetes_api.listen -}}
{{- $periods := add (include "kas.seconds" $listen.listen_grace_period | int64) (include "kas.seconds" $listen.shutdown_grace_period | int64) -}}
{{- add $periods 15 -}}
{{- end -}}
