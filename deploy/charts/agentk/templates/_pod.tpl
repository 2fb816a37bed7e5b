{{/* The settings of all pods. */}}
{{- define "agentk.commonPod" -}}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* What the pods of agentk and the pod of `helm test` share. */}}
{{- define "agentk.pod" -}}
serviceAccountName: {{ include "agentk.serviceAccountName" . }}
# The identity of agentk in the cluster.
automountServiceAccountToken: true
{{ include "agentk.commonPod" . }}
volumes:
  - name: token
    secret: {secretName: {{ include "agentk.tokenSecret" . }}}
  {{- if include "agentk.hasConfig" . }}
  - name: config
    configMap: {name: {{ include "agentk.fullname" . }}}
  {{- end }}
  {{- with .Values.listen }}
  {{- if .enabled }}
  - name: listen
    projected:
      sources:
        - secret:
            name: {{ .tlsSecret }}
            items:
              - {key: tls.crt, path: tls.crt}
              - {key: tls.key, path: tls.key}
        {{- range $path, $secret := dict "key" .keySecret "ca.crt" .clientCaSecret "public-key" .jwtSecret }}
        {{- if $secret }}
        - secret:
            name: {{ $secret }}
            items:
              - {key: {{ $path }}, path: {{ $path }}}
        {{- end }}
        {{- end }}
  {{- end }}
  {{- end }}
  {{- if and .Values.notify.enabled .Values.notify.keysSecret }}
  - name: webhooks
    secret: {secretName: {{ .Values.notify.keysSecret }}}
  {{- end }}
  {{- with .Values.alerts.tlsSecret }}
  - name: hubble
    secret: {secretName: {{ . }}}
  {{- end }}
  {{- range $index, $server := .Values.prometheus.servers }}
  {{- if or $server.caSecret $server.tokenSecret $server.basicAuthSecret }}
  - name: prometheus-{{ $index }}
    projected:
      sources:
        {{- range $path, $secret := dict "ca.crt" $server.caSecret "token" $server.tokenSecret "basic-auth" $server.basicAuthSecret }}
        {{- if $secret }}
        - secret:
            name: {{ $secret.name }}
            items:
              - {key: {{ $secret.key }}, path: {{ $path }}}
        {{- end }}
        {{- end }}
  {{- end }}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The settings of all containers with agentk. */}}
{{- define "agentk.commonContainer" -}}
image: {{ include "agentk.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{- define "agentk.container" -}}
{{ include "agentk.commonContainer" . }}
env:
  {{- if .Values.listen.enabled }}
  - name: AGENTK_LISTEN
    value: ":8150"
  - name: AGENTK_LISTEN_CERTIFICATE_FILE
    value: /etc/agentk/listen/tls.crt
  - name: AGENTK_LISTEN_CERTIFICATE_KEY_FILE
    value: /etc/agentk/listen/tls.key
  {{- if .Values.listen.keySecret }}
  - name: AGENTK_LISTEN_KEY_FILE
    value: /etc/agentk/listen/key
  {{- end }}
  {{- if .Values.listen.clientCaSecret }}
  - name: AGENTK_LISTEN_CLIENT_CA_FILE
    value: /etc/agentk/listen/ca.crt
  {{- end }}
  {{- if .Values.listen.jwtSecret }}
  - name: AGENTK_LISTEN_JWT_FILE
    value: /etc/agentk/listen/public-key
  {{- end }}
  {{- else }}
  - name: AGENTK_KAS_ADDRESS
    value: {{ .Values.config.kasAddress | quote }}
  {{- end }}
  - name: AGENTK_TOKEN_FILE
    value: /etc/agentk/token/token
  {{- if .Values.config.kasCaCert }}
  - name: AGENTK_KAS_CA_CERT_FILE
    value: /etc/agentk/config/kas-ca.crt
  {{- end }}
  {{- if .Values.policy }}
  - name: AGENTK_POLICY_FILE
    value: /etc/agentk/config/policy.yaml
  {{- end }}
  {{- if eq .Values.rbac.scope "namespaces" }}
  - name: AGENTK_NAMESPACES
    value: {{ join "," .Values.rbac.namespaces | quote }}
  {{- end }}
  {{- if not .Values.gitops.enabled }}
  - name: AGENTK_NO_GITOPS
    value: "true"
  {{- end }}
  {{- if not .Values.notify.enabled }}
  - name: AGENTK_NO_NOTIFY
    value: "true"
  {{- end }}
  {{- if not .Values.graph.enabled }}
  - name: AGENTK_NO_GRAPH
    value: "true"
  {{- end }}
  {{- with .Values.alerts }}
  {{- if .hubbleAddress }}
  - name: AGENTK_HUBBLE_ADDRESS
    value: {{ .hubbleAddress | quote }}
  {{- end }}
  {{- if .tlsSecret }}
  - name: AGENTK_HUBBLE_CA_CERT_FILE
    value: /etc/agentk/hubble/ca.crt
  - name: AGENTK_HUBBLE_CLIENT_CERT_FILE
    value: /etc/agentk/hubble/tls.crt
  - name: AGENTK_HUBBLE_CLIENT_KEY_FILE
    value: /etc/agentk/hubble/tls.key
  {{- end }}
  {{- if .tlsServerName }}
  - name: AGENTK_HUBBLE_TLS_SERVER_NAME
    value: {{ .tlsServerName | quote }}
  {{- end }}
  {{- if .policyEngines }}
  - name: AGENTK_POLICY_ENGINE_ALERTS
    value: "true"
  {{- end }}
  {{- end }}
  {{- if .Values.requireScope }}
  - name: AGENTK_REQUIRE_SCOPE
    value: "true"
  {{- end }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  {{- range $name, $value := dict "HTTPS_PROXY" .Values.proxy.httpsProxy "HTTP_PROXY" .Values.proxy.httpProxy "NO_PROXY" .Values.proxy.noProxy }}
  {{- if $value }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: token, mountPath: /etc/agentk/token, readOnly: true}
  {{- if include "agentk.hasConfig" . }}
  - {name: config, mountPath: /etc/agentk/config, readOnly: true}
  {{- end }}
  {{- if .Values.listen.enabled }}
  - {name: listen, mountPath: /etc/agentk/listen, readOnly: true}
  {{- end }}
  {{- if and .Values.notify.enabled .Values.notify.keysSecret }}
  - {name: webhooks, mountPath: /etc/agentk/webhooks, readOnly: true}
  {{- end }}
  {{- if .Values.alerts.tlsSecret }}
  - {name: hubble, mountPath: /etc/agentk/hubble, readOnly: true}
  {{- end }}
  {{- range $index, $server := .Values.prometheus.servers }}
  {{- if or $server.caSecret $server.tokenSecret $server.basicAuthSecret }}
  - {name: prometheus-{{ $index }}, mountPath: /etc/agentk/prometheus/{{ $index }}, readOnly: true}
  {{- end }}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
