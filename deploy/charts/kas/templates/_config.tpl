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

{{/* "true" with the web page. */}}
{{- define "kas.web" -}}
{{- if or .Values.web.enabled (hasKey .Values.customConfig "web") -}}true{{- end -}}
{{- end -}}

{{- define "kas.config.defaults" -}}
agent:
  listen:
    address: :8150
    {{- include "kas.config.tls" . | nindent 4 }}
    {{- include "kas.config.proxies" . | nindent 4 }}
  kubernetes_api:
    {{- with .Values.ingress.wildcardHost }}
    hosts: [{{ trimPrefix "*" . | printf "{agent}%s" | quote }}]
    {{- end }}
    listen:
      address: :8154
      {{- include "kas.config.tls" . | nindent 6 }}
      {{- include "kas.config.proxies" . | nindent 6 }}
      {{- $late := has .Values.ingress.preset (list "gce" "alb") }}
      {{- $grace := .Values.shutdown.listenGracePeriod }}
      listen_grace_period: {{ eq $grace "auto" | ternary (ternary "20s" "5s" $late) $grace }}
      shutdown_grace_period: {{ .Values.shutdown.shutdownGracePeriod }}
observability:
  listen:
    address: :8151
{{- if include "kas.web" . }}
web:
  listen:
    address: :8156
    {{- include "kas.config.tls" . | nindent 4 }}
    {{- if .Values.callersService.enabled }}
    {{- include "kas.config.proxies" . | nindent 4 }}
    {{- else }}
    {{- with .Values.trustedProxies }}
    trusted_proxies: {{ toJson . }}
    {{- end }}
    {{- end }}
{{- end }}
{{- if hasKey .Values.customConfig "api" }}
api:
  listen:
    address: :8153
{{- end }}
{{- if include "kas.redis" . }}
redis:
  {{- omit .Values.redis "existingSecret" | toYaml | nindent 2 }}
  {{- if .Values.redis.existingSecret }}
  password_file: /etc/kas/redis/password
  {{- end }}
private_api:
  {{- if not .Values.privateApi.tls.existingSecret }}
  # The secret authenticates requests between pods. privateApi.tls encrypts them.
  allow_plaintext: true
  {{- end }}
  listen:
    address: :8155
    authentication_secret_file: /etc/kas/private-api/secret
    {{- if .Values.privateApi.tls.existingSecret }}
    certificate_file: /etc/kas/private-api-tls/tls.crt
    key_file: /etc/kas/private-api-tls/tls.key
    ca_certificate_file: /etc/kas/private-api-tls/ca.crt
    {{- end }}
{{- end }}
identity:
  file: /etc/kas/identity/identity.yaml
disabled:
  file: /etc/kas/disabled/disabled.yaml
  {{- if include "kas.redis" . }}
  fleet_file: /var/lib/kas/disabled-fleet.json
  {{- end }}
{{- end -}}

{{/* kas.yaml: what the chart writes, and customConfig merged over it. */}}
{{- define "kas.config" -}}
{{- mergeOverwrite (include "kas.config.defaults" . | fromYaml) (deepCopy .Values.customConfig) | toYaml -}}
{{- end -}}

{{/* The listeners of kas.yaml by the names of their ports, without those on loopback. */}}
{{- define "kas.listeners" -}}
{{- $config := include "kas.config" . | fromYaml -}}
{{- $listeners := dict "agent" $config.agent.listen "public" $config.agent.kubernetes_api.listen -}}
{{- range $name, $section := dict "observability" "observability" "private" "private_api" "web" "web" "api" "api" -}}
{{- with get $config $section -}}
{{- $_ := set $listeners $name .listen -}}
{{- end -}}
{{- end -}}
{{- range $name, $listener := $listeners }}
{{- if not (regexMatch "^(localhost|127[.]|\\[::1\\])" $listener.address) }}
{{ $name }}: {{ toJson $listener }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The ports of the pods: those of the listeners. The numbers of the Services do not change with them. */}}
{{- define "kas.ports" -}}
{{- range $name, $listener := include "kas.listeners" . | fromYaml }}
{{ $name }}: {{ regexFind "[0-9]+$" $listener.address }}
{{- end }}
{{- end -}}

{{/* "true" if the listener of callers uses TLS. kas.validate refuses an ingress if that of agents differs. */}}
{{- define "kas.tls" -}}
{{- if (include "kas.listeners" . | fromYaml).public.certificate_file -}}true{{- end -}}
{{- end -}}

{{/* The path of GitLab's kas, without a slash at its end. */}}
{{- define "kas.pathPrefix" -}}
{{- dig "agent" "kubernetes_api" "url_path_prefix" "/k8s-proxy/" .Values.customConfig | trimSuffix "/" -}}
{{- end -}}

{{/* The seconds that a pod has to stop: both periods of kas, and 15 for the last steps. */}}
{{- define "kas.gracePeriod" -}}
{{- $listen := (include "kas.config" . | fromYaml).agent.kubernetes_api.listen -}}
{{- $periods := add (include "kas.seconds" $listen.listen_grace_period | int64) (include "kas.seconds" $listen.shutdown_grace_period | int64) -}}
{{- add $periods 15 -}}
{{- end -}}
