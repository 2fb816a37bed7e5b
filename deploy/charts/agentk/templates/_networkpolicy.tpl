{{/* A NetworkPolicy of some pods: (list $ name selectorLabels ports egress). Each port has its peers, and [] is all. */}}
{{- define "agentk.networkPolicy" -}}
{{- $root := index . 0 -}}
{{- $observability := dict "port" "observability" "from" $root.Values.networkpolicy.metricsFrom -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "agentk.labels" $root | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- index . 2 | nindent 6 }}
  policyTypes: [Ingress{{ if $root.Values.networkpolicy.egress.enabled }}, Egress{{ end }}]
  ingress:
    {{- range append (index . 3) $observability }}
    - ports:
        - port: {{ .port }}
      {{- with .from }}
      from: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
  {{- if $root.Values.networkpolicy.egress.enabled }}
  egress: {{- index . 4 | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The connections to the API server. */}}
{{- define "agentk.egressToApiServer" -}}
{{- $egress := .Values.networkpolicy.egress -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
# The API server.
- ports: {{- include "agentk.tcpPorts" $egress.apiServerPorts | trim | nindent 4 }}
  {{- with $egress.apiServerTo }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The connections that agentk opens. */}}
{{- define "agentk.egress" -}}
{{- $egress := .Values.networkpolicy.egress -}}
{{ include "agentk.egressToApiServer" . }}
{{- $kas := compact (list .Values.config.kasAddress .Values.proxy.httpsProxy .Values.proxy.httpProxy) }}
{{- if and $kas (not .Values.listen.enabled) }}
# kas, and the proxy to it.
- ports: {{- include "agentk.tcpPortsOfUrls" $kas | trim | nindent 4 }}
  {{- with $egress.kasTo }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- $servers := compact (list .Values.alerts.hubbleAddress) }}
{{- range .Values.prometheus.servers }}
{{- $servers = append $servers .url }}
{{- end }}
{{- if $servers }}
# Prometheus, and Hubble Relay.
- ports: {{- include "agentk.tcpPortsOfUrls" $servers | trim | nindent 4 }}
{{- end }}
{{- with $egress.extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "agentk.tcpPorts" -}}
{{- range uniq . }}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end -}}

{{/* The ports of URLs, with the default of each scheme. */}}
{{- define "agentk.tcpPortsOfUrls" -}}
{{- $ports := list -}}
{{- range . -}}
{{- $port := regexFind ":[0-9]+(/|$)" . | trimAll ":/" | default (regexMatch "^(wss|https)://" . | ternary "443" "80") -}}
{{- $ports = append $ports $port -}}
{{- end -}}
{{- include "agentk.tcpPorts" $ports -}}
{{- end -}}
