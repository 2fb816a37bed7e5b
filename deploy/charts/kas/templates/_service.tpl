{{/* The name of the Service of callers. */}}
{{- define "kas.callersService" -}}
{{ include "kas.fullname" . }}{{ if .Values.callersService.enabled }}-callers{{ end }}
{{- end -}}

{{/* A Service for one audience: (list $ name settings ports). */}}
{{- define "kas.service" -}}
{{- $root := index . 0 -}}
{{- $settings := index . 2 -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "kas.labels" $root | nindent 4 }}
  {{- $annotations := include "kas.preset.serviceAnnotations" (list $root $settings) | fromYaml }}
  {{- with mergeOverwrite $annotations (deepCopy $settings.annotations) }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $settings.type }}
  {{- with $settings.loadBalancerSourceRanges }}
  loadBalancerSourceRanges: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $settings.externalTrafficPolicy }}
  externalTrafficPolicy: {{ . }}
  {{- end }}
  {{- with $settings.ipFamilyPolicy }}
  ipFamilyPolicy: {{ . }}
  {{- end }}
  {{- with $settings.ipFamilies }}
  ipFamilies: {{- toYaml . | nindent 4 }}
  {{- end }}
  selector: {{- include "kas.selectorLabels" $root | nindent 4 }}
  # Server-side apply (Helm 4) needs the protocol in Kubernetes 1.20.
  ports:
    {{- range index . 3 }}
    - {name: {{ .name }}, port: {{ .port }}, protocol: TCP, targetPort: {{ .name }}}
    {{- end }}
{{- end -}}
