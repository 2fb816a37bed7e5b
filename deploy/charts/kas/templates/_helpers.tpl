{{- define "kas.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "kas.fullname" -}}
{{- $name := include "kas.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kas.instanceLabels" -}}
app.kubernetes.io/name: {{ include "kas.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of the pods that serve. Those of `helm test` have another component. */}}
{{- define "kas.selectorLabels" -}}
{{ include "kas.instanceLabels" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "kas.labels" -}}
{{ include "kas.instanceLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Spreads the pods of a Deployment over nodes: (list $ selectorLabels). Pods of an older version do not count, where Kubernetes can tell. */}}
{{- define "kas.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  {{- if semverCompare ">=1.27-0" (index . 0).Capabilities.KubeVersion.Version }}
  matchLabelKeys: [pod-template-hash]
  {{- end }}
  labelSelector:
    matchLabels: {{- index . 1 | nindent 6 }}
{{- end -}}

{{- define "kas.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kas.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "kas.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* "true" if each connection begins with a PROXY header. */}}
{{- define "kas.proxyProtocol" -}}
{{- if eq (toString .Values.proxyProtocol) "v2" -}}true{{- end -}}
{{- end -}}

{{/* "true" if the replicas share a Redis. */}}
{{- define "kas.redis" -}}
{{- with .Values.redis -}}
{{- if or .server .sentinel .cluster -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kas.hpa" -}}
{{- $enabled := toString .Values.hpa.enabled -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") (include "kas.redis" .)) -}}true{{- end -}}
{{- end -}}

{{/* "true" if there are two replicas or more at all times. */}}
{{- define "kas.several" -}}
{{- $replicas := .Values.replicas -}}
{{- if include "kas.hpa" . -}}{{- $replicas = .Values.minReplicas -}}{{- end -}}
{{- if gt (int $replicas) 1 -}}true{{- end -}}
{{- end -}}

{{- define "kas.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{ include "kas.fullname" . }}-tls
{{- else -}}
{{ .Values.tls.existingSecret }}
{{- end -}}
{{- end -}}

{{/* The names in the certificate of cert-manager, as a list. */}}
{{- define "kas.certificateNames" -}}
{{- $names := compact (list .Values.ingress.host .Values.ingress.wildcardHost) -}}
{{- $names = concat $names .Values.gateway.hostnames .Values.tls.certManager.dnsNames -}}
{{- if .Values.tls.certManager.serviceNames -}}
{{- range list "" "-callers" "-web" "-api" -}}
{{- $names = append $names (printf "%s%s.%s.svc" (include "kas.fullname" $) . $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- uniq $names | toYaml -}}
{{- end -}}

{{- define "kas.identitySecret" -}}
{{ .Values.identity.existingSecret | default (printf "%s-identity" (include "kas.fullname" .)) }}
{{- end -}}

{{- define "kas.privateApiSecret" -}}
{{ .Values.privateApi.existingSecret | default (printf "%s-private-api-key" (include "kas.fullname" .)) }}
{{- end -}}

{{/* "true" if extraEnv has the address for other replicas. */}}
{{- define "kas.ownAddress" -}}
{{- range .Values.extraEnv -}}
{{- if has .name (list "OWN_PRIVATE_API_URL" "OWN_PRIVATE_API_CIDR") -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* The seconds of a duration such as 1h30m, rounded up. */}}
{{- define "kas.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $sum = addf $sum (mulf (float64 $number) (get $units (trimPrefix $number .))) -}}
{{- end -}}
{{- ceil $sum | int64 -}}
{{- end -}}

{{- define "kas.probe" -}}
httpGet: {path: {{ .path }}, port: observability}
{{ toYaml .timing }}
{{- end -}}
