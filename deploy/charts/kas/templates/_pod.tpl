{{/* What the pods that serve and the pod of `helm test` share. */}}
{{- define "kas.pod" -}}
serviceAccountName: {{ include "kas.serviceAccountName" . }}
automountServiceAccountToken: false
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
volumes:
  - name: config
    configMap: {name: {{ include "kas.fullname" . }}}
  - name: disabled
    configMap: {name: {{ include "kas.fullname" . }}-disabled}
  # Trees of Git repositories with configurations of agents.
  - name: tmp
    emptyDir: {sizeLimit: 512Mi}
  {{- if include "kas.redis" . }}
  # The kill switch of all replicas, also after a restart of the container with an empty Redis.
  - name: state
    emptyDir: {sizeLimit: 1Mi}
  {{- end }}
  - name: identity
    secret: {secretName: {{ include "kas.identitySecret" . }}}
  {{- with include "kas.tlsSecret" . }}
  - name: tls
    secret: {secretName: {{ . }}}
  {{- end }}
  {{- if include "kas.redis" . }}
  - name: private-api
    secret: {secretName: {{ include "kas.privateApiSecret" . }}}
  {{- with .Values.privateApi.tls.existingSecret }}
  - name: private-api-tls
    secret: {secretName: {{ . }}}
  {{- end }}
  {{- with .Values.redis.existingSecret }}
  - name: redis
    secret: {secretName: {{ . }}}
  {{- end }}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "kas.container" -}}
image: {{ include "kas.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- if or (include "kas.redis" .) .Values.extraEnv }}
env:
  {{- if include "kas.redis" . }}
  # The address for other replicas: that of this pod, not that of the Service. Its scheme and its port are those of the listener.
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  {{- if not (include "kas.ownAddress" .) }}
  - name: OWN_PRIVATE_API_CIDR
    value: $(POD_IP)
  {{- end }}
  {{- with .Values.privateApi.tls.serverName }}
  - name: OWN_PRIVATE_API_HOST
    value: {{ . }}
  {{- end }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: config, mountPath: /etc/kas/kas.yaml, subPath: kas.yaml}
  - {name: disabled, mountPath: /etc/kas/disabled, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if include "kas.redis" . }}
  - {name: state, mountPath: /var/lib/kas}
  {{- end }}
  - {name: identity, mountPath: /etc/kas/identity, readOnly: true}
  {{- if include "kas.tlsSecret" . }}
  - {name: tls, mountPath: /etc/kas/tls, readOnly: true}
  {{- end }}
  {{- if include "kas.redis" . }}
  - {name: private-api, mountPath: /etc/kas/private-api, readOnly: true}
  {{- if .Values.privateApi.tls.existingSecret }}
  - {name: private-api-tls, mountPath: /etc/kas/private-api-tls, readOnly: true}
  {{- end }}
  {{- if .Values.redis.existingSecret }}
  - {name: redis, mountPath: /etc/kas/redis, readOnly: true}
  {{- end }}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
