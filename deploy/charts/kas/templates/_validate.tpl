{{/* Refuses values that the schema cannot refuse. Each message begins with the key. */}}
{{- define "kas.validate" -}}
{{- $redis := include "kas.redis" . -}}
{{- $identity := .Values.identity -}}
{{- if not (or $identity.existingSecret $identity.content) -}}
{{- fail "identity: set identity.existingSecret, or identity.content (--set-file identity.content=identity.yaml)" -}}
{{- end -}}
{{- if and $identity.existingSecret $identity.content -}}
{{- fail "identity: set one of identity.existingSecret and identity.content, not both" -}}
{{- end -}}
{{- if and (not $redis) (gt (int .Values.replicas) 1) -}}
{{- fail "replicas: more than one replica needs redis.server, redis.sentinel or redis.cluster" -}}
{{- end -}}
{{- if and (not $redis) (include "kas.hpa" .) -}}
{{- fail "hpa.enabled: autoscaling needs redis.server, redis.sentinel or redis.cluster" -}}
{{- end -}}
{{- if gt (int .Values.minReplicas) (int .Values.maxReplicas) -}}
{{- fail "minReplicas: it is more than maxReplicas" -}}
{{- end -}}
{{- if and (not $redis) (or .Values.redis.existingSecret (gt (len (omit .Values.redis "existingSecret")) 0)) -}}
{{- fail "redis: set one of redis.server, redis.sentinel and redis.cluster" -}}
{{- end -}}
{{- if gt (len (pick .Values.redis "server" "sentinel" "cluster")) 1 -}}
{{- fail "redis: set one of redis.server, redis.sentinel and redis.cluster, not two" -}}
{{- end -}}
{{- if or .Values.customConfig.redis .Values.customConfig.private_api | and (not $redis) -}}
{{- fail "customConfig: set Redis as `redis`, not as customConfig.redis, because the chart writes private_api and the autoscaler for it" -}}
{{- end -}}
{{- if and $redis (not .Values.privateApi.generate) (not .Values.privateApi.existingSecret) -}}
{{- fail "privateApi.existingSecret: replicas need a secret; name one, or set privateApi.generate" -}}
{{- end -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled -}}
{{- fail "tls: set one of tls.existingSecret and tls.certManager.enabled, not both" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.issuerRef: name the issuer, as in {name: letsencrypt, kind: ClusterIssuer}" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not (include "kas.certificateNames" . | fromYamlArray)) -}}
{{- fail "tls.certManager.dnsNames: name the hosts of the certificate" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host: name the host of the ingress" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- fail "gateway.parentRefs: name the gateway of the route" -}}
{{- end -}}
{{- if and (has .Values.ingress.preset (list "nginx" "gce" "alb")) (not .Values.ingress.enabled) -}}
{{- fail (printf "ingress.preset: %s needs ingress.enabled" .Values.ingress.preset) -}}
{{- end -}}
{{- $listeners := include "kas.listeners" . | fromYaml -}}
{{- range $name, $key := dict "agent" "agent" "public" "agent.kubernetes_api" "observability" "observability" "private" "private_api" -}}
{{- if and (not (hasKey $listeners $name)) (or $redis (ne $name "private")) -}}
{{- fail (printf "customConfig.%s.listen.address: loopback is inside of the pod, where nobody connects" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (ne (empty $listeners.agent.certificate_file) (empty $listeners.public.certificate_file)) -}}
{{- fail "customConfig.agent: an ingress uses TLS to both listeners, or to none: set certificate_file and key_file of both" -}}
{{- end -}}
{{- if and (or .Values.ingress.enabled .Values.gateway.enabled) (not (include "kas.pathPrefix" .)) -}}
{{- fail "customConfig.agent.kubernetes_api.url_path_prefix: with / one host has no path for agents" -}}
{{- end -}}
{{- if and .Values.privateApi.tls.serverName (not .Values.privateApi.tls.existingSecret) -}}
{{- fail "privateApi.tls.existingSecret: name the secret with the certificate, because privateApi.tls.serverName is set" -}}
{{- end -}}
{{- $web := $listeners.web | default dict -}}
{{- if and .Values.web.enabled (not (or $web.certificate_file $web.trusted_proxies)) -}}
{{- fail "web.enabled: the page needs TLS: set tls.existingSecret or tls.certManager, or name the networks of the proxies with TLS in trustedProxies" -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled -}}
{{- fail "metrics: set one of metrics.podMonitor and metrics.serviceMonitor, not both: each series would be there twice" -}}
{{- end -}}
{{- if and (include "kas.proxyProtocol" .) (not .Values.trustedProxies) -}}
{{- fail "proxyProtocol: name the networks of the load balancer in trustedProxies; connections from elsewhere are closed" -}}
{{- end -}}
{{- if and (include "kas.proxyProtocol" .) (or .Values.ingress.enabled .Values.gateway.enabled) -}}
{{- fail "proxyProtocol: v2 is for a load balancer of TCP; an ingress and a gateway send no PROXY header" -}}
{{- end -}}
{{- if and (eq .Values.ingress.preset "envoy") (not .Values.gateway.enabled) -}}
{{- fail "ingress.preset: envoy needs gateway.enabled" -}}
{{- end -}}
{{- end -}}
