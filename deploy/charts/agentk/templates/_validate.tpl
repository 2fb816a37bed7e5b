{{/* Refuses values that the schema cannot refuse. Each message begins with the key. */}}
{{- define "agentk.validate" -}}
{{- if .Values.listen.enabled -}}
{{- if .Values.config.kasAddress -}}
{{- fail "config.kasAddress: set one of config.kasAddress and listen.enabled, not both" -}}
{{- end -}}
{{- range $key := list "kasCaCert" "kasTlsServerName" "kasHeaders" -}}
{{- if get $.Values.config $key -}}
{{- fail (printf "config.%s: it is for connections to kas, and agentk opens none, because listen.enabled is true" $key) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.listen.tlsSecret -}}
{{- fail "listen.tlsSecret: name the secret with the certificate of agentk, because listen.enabled is true" -}}
{{- end -}}
{{- if not (or .Values.listen.keySecret .Values.listen.clientCaSecret .Values.listen.jwtSecret) -}}
{{- fail "listen.keySecret: kas has to authenticate: set one of listen.keySecret, listen.clientCaSecret and listen.jwtSecret, or several" -}}
{{- end -}}
{{- else if not .Values.config.kasAddress -}}
{{- fail "config.kasAddress: set the address of kas, as in wss://kas.example.com:8150; if kas connects to agentk, set listen.enabled" -}}
{{- end -}}
{{- if not (or .Values.config.token .Values.config.secretName) -}}
{{- fail "config.token: set config.token, or config.secretName" -}}
{{- end -}}
{{- if and .Values.config.token .Values.config.secretName -}}
{{- fail "config.token: set one of config.token and config.secretName, not both" -}}
{{- end -}}
{{- with .Values.rbac -}}
{{- if and (eq .scope "namespaces") (not .namespaces) -}}
{{- fail "rbac.namespaces: name the namespaces, because rbac.scope is namespaces" -}}
{{- end -}}
{{- if and (eq .scope "cluster") .namespaces -}}
{{- fail "rbac.namespaces: the rights are for the whole cluster, because rbac.scope is cluster" -}}
{{- end -}}
{{- if and (eq .scope "namespaces") .impersonate -}}
{{- fail "rbac.impersonate: users and groups have no namespace, so it needs rbac.scope cluster" -}}
{{- end -}}
{{- end -}}
{{- with .Values.alerts -}}
{{- if and (or .tlsSecret .tlsServerName) (not (hasPrefix "https://" .hubbleAddress)) -}}
{{- fail "alerts.hubbleAddress: write https://, because alerts.tlsSecret or alerts.tlsServerName is set" -}}
{{- end -}}
{{- end -}}
{{- with .Values.policy -}}
{{- range concat (.rules | default list) (.objects | default list) -}}
{{- if and .namespaceSelector (not $.Values.rbac.namespaceLabels) -}}
{{- fail (printf "rbac.namespaceLabels: set it to true, because the rule %q of policy selects namespaces by labels, which agentk has to read" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.provision.enabled -}}
{{- if not .Values.policy -}}
{{- fail "policy: list the kinds of objects that environments may have, because provision.enabled is true" -}}
{{- end -}}
{{- if eq .Values.rbac.scope "namespaces" -}}
{{- fail "provision.enabled: namespaces are made in no namespace, so it needs rbac.scope cluster" -}}
{{- end -}}
{{- end -}}
{{- with .Values.admission -}}
{{- if .enabled -}}
{{- if not $.Values.policy -}}
{{- fail "policy: write the policy by which the webhook decides, because admission.enabled is true" -}}
{{- end -}}
{{- if not .tlsSecret -}}
{{- fail "admission.tlsSecret: name the secret with the certificate of the webhook, because admission.enabled is true" -}}
{{- end -}}
{{- if not (or .caCert .annotations) -}}
{{- fail "admission.caCert: set the certificates to trust for the webhook, or annotate it in admission.annotations, so that cert-manager adds them" -}}
{{- end -}}
{{- range .impersonatedPrefixes -}}
{{- if or (hasPrefix . "system:") (hasPrefix "system:" .) -}}
{{- fail (printf "admission.impersonatedPrefixes: users of Kubernetes itself have the prefix %q: the cluster could not work" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.audit -}}
{{- if .enabled -}}
{{- if $.Values.listen.enabled -}}
{{- fail "audit.enabled: kas could not choose the pod with the events behind the Service of listen.enabled" -}}
{{- end -}}
{{- if not .tlsSecret -}}
{{- fail "audit.tlsSecret: name the secret with the certificates of the webhook, because audit.enabled is true" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names := dict -}}
{{- range .Values.prometheus.servers -}}
{{- $name := .name | default "" -}}
{{- if hasKey $names $name -}}
{{- fail (printf "prometheus.servers: two servers have the name %q" $name) -}}
{{- end -}}
{{- $_ := set $names $name true -}}
{{- if and .tokenSecret .basicAuthSecret -}}
{{- fail (printf "prometheus.servers: %q has tokenSecret and basicAuthSecret; set one" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
