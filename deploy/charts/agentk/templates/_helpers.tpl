{{- define "agentk.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "agentk.fullname" -}}
{{- $name := include "agentk.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of objects outside of the namespace. No name of a namespace or a release has a colon, so that two releases have two names. */}}
{{- define "agentk.clusterName" -}}
{{ .Release.Namespace }}:{{ include "agentk.fullname" . }}
{{- end -}}

{{- define "agentk.instanceLabels" -}}
app.kubernetes.io/name: {{ include "agentk.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agentk.selectorLabels" -}}
{{ include "agentk.instanceLabels" . }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "agentk.admissionName" -}}
{{ include "agentk.fullname" . }}-admission
{{- end -}}

{{- define "agentk.admissionSelectorLabels" -}}
{{ include "agentk.instanceLabels" . }}
app.kubernetes.io/component: admission
{{- end -}}

{{- define "agentk.auditName" -}}
{{ include "agentk.fullname" . }}-audit
{{- end -}}

{{/* The bytes of the events without a volume, and an eighth more for their files. */}}
{{- define "agentk.auditStorage" -}}
{{- div (mul (int64 .Values.audit.maxBytes) 9) 8 -}}
{{- end -}}

{{- define "agentk.auditSelectorLabels" -}}
{{ include "agentk.instanceLabels" . }}
app.kubernetes.io/component: audit
{{- end -}}

{{- define "agentk.labels" -}}
{{ include "agentk.instanceLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Spreads the pods of a Deployment over nodes: (list $ selectorLabels). Pods of an older version do not count, where Kubernetes can tell. */}}
{{- define "agentk.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  {{- if semverCompare ">=1.27-0" (index . 0).Capabilities.KubeVersion.Version }}
  matchLabelKeys: [pod-template-hash]
  {{- end }}
  labelSelector:
    matchLabels: {{- index . 1 | nindent 6 }}
{{- end -}}

{{- define "agentk.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "agentk.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "agentk.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "agentk.tokenSecret" -}}
{{ .Values.config.secretName | default (printf "%s-token" (include "agentk.fullname" .)) }}
{{- end -}}

{{/* The flags of agentk, which `agentk check` has, too. Those with a variable are in its environment, so that `kubectl exec
deployment/agentk -- agentk check` needs none of them. */}}
{{- define "agentk.args" -}}
{{- if not .Values.listen.enabled -}}
- --tunnels={{ .Values.tunnels }}
{{ end -}}
- --shutdown-grace-period={{ sub .Values.terminationGracePeriodSeconds 5 }}s
{{- with .Values.config.kasTlsServerName }}
- --kas-tls-server-name={{ . }}
{{- end }}
{{- range .Values.config.kasHeaders }}
- {{ printf "--kas-header=%s" . | quote }}
{{- end }}
{{- range $index, $server := .Values.prometheus.servers }}
{{- $name := ternary (printf "%s=" $server.name) "" (hasKey $server "name") }}
{{- $files := printf "%s/etc/agentk/prometheus/%d" $name $index }}
- --prometheus-url={{ $name }}{{ $server.url }}
{{- if $server.caSecret }}
- --prometheus-ca-cert-file={{ $files }}/ca.crt
{{- end }}
{{- if $server.tokenSecret }}
- --prometheus-token-file={{ $files }}/token
{{- end }}
{{- if $server.basicAuthSecret }}
- --prometheus-basic-auth-file={{ $files }}/basic-auth
{{- end }}
{{- end }}
{{- with .Values.prometheus.discovery }}
- {{ printf "--prometheus-discovery=%s" . | quote }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "agentk.hasConfig" -}}
{{- if or .Values.config.kasCaCert .Values.policy -}}true{{- end -}}
{{- end -}}

{{- define "agentk.disruptionBudgetVersion" -}}
{{ semverCompare ">=1.21-0" .Capabilities.KubeVersion.Version | ternary "policy/v1" "policy/v1beta1" }}
{{- end -}}

{{- define "agentk.subject" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "agentk.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end -}}
