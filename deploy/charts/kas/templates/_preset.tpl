{{/* Annotations of the ingress for a load balancer. docs/load-balancers.md explains each. */}}
{{- define "kas.preset.ingressAnnotations" -}}
{{- $protocol := ternary "HTTPS" "HTTP" (eq (include "kas.tls" .) "true") -}}
{{- if eq .Values.ingress.preset "nginx" -}}
nginx.ingress.kubernetes.io/backend-protocol: {{ $protocol }}
nginx.ingress.kubernetes.io/proxy-body-size: "0"
nginx.ingress.kubernetes.io/proxy-buffering: "off"
nginx.ingress.kubernetes.io/proxy-request-buffering: "off"
nginx.ingress.kubernetes.io/proxy-http-version: "1.1"
nginx.ingress.kubernetes.io/proxy-read-timeout: "3600"
nginx.ingress.kubernetes.io/proxy-send-timeout: "3600"
{{- else if eq .Values.ingress.preset "alb" -}}
alb.ingress.kubernetes.io/target-type: ip
alb.ingress.kubernetes.io/backend-protocol: {{ $protocol }}
alb.ingress.kubernetes.io/healthcheck-protocol: HTTP
alb.ingress.kubernetes.io/healthcheck-port: {{ (include "kas.ports" . | fromYaml).observability | quote }}
alb.ingress.kubernetes.io/healthcheck-path: /readiness
alb.ingress.kubernetes.io/healthcheck-interval-seconds: "5"
alb.ingress.kubernetes.io/healthcheck-timeout-seconds: "3"
alb.ingress.kubernetes.io/load-balancer-attributes: idle_timeout.timeout_seconds=4000
alb.ingress.kubernetes.io/target-group-attributes: deregistration_delay.timeout_seconds={{ min 3600 (include "kas.gracePeriod" .) }}
{{- end -}}
{{- end -}}

{{/* Annotations of a Service with settings for a load balancer: (list $ settings). */}}
{{- define "kas.preset.serviceAnnotations" -}}
{{- $root := index . 0 -}}
{{- $settings := index . 1 -}}
{{- if eq $root.Values.ingress.preset "gce" -}}
cloud.google.com/neg: '{"ingress": true}'
cloud.google.com/backend-config: '{"default": "{{ include "kas.fullname" $root }}"}'
{{- if include "kas.tls" $root }}
cloud.google.com/app-protocols: '{"agent": "HTTPS", "public": "HTTPS"}'
{{- end }}
{{- else if and (include "kas.proxyProtocol" $root) (eq $settings.type "LoadBalancer") -}}
service.beta.kubernetes.io/aws-load-balancer-proxy-protocol: "*"
{{- end -}}
{{- end -}}
