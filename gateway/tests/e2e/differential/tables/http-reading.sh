# HTTP requests that only read. Both sides read the same objects.

setup kubectl create configmap colours --from-literal=sky=blue --from-literal=sea=grün
setup kubectl create configmap second
setup kubectl create configmap third
setup kubectl create deployment none --image=busybox:1.35 --replicas=0
setup until_it kubectl get deployment none -o jsonpath='{.status.observedGeneration}'

# Methods
200   api /healthz --head
200   api /openapi/v2 --head
200   api $core/configmaps/colours
405   api $core/configmaps/colours --head
405   api $core/configmaps/none --head
405   api $core/configmaps --request OPTIONS
406/415 api $core --request PATCH
405   api $core/configmaps/colours --request POST
405   api $core/configmaps/colours --request TRACE
405   api $core/configmaps/colours --request PURGE

# Versions of HTTP
200   api $core/configmaps/colours --http1.1
200   api $core/configmaps/colours --http2
200   api $core/configmaps/colours --http2-prior-knowledge
405   api $core/configmaps/colours --head --http1.1
200   api $core/configmaps/colours --http1.1 -H 'Connection: close'
200   api $core/configmaps/colours --http1.1 -H 'Connection: keep-alive, X-Private' -H 'X-Private: 1'
0     curl "$SERVER$core/configmaps/colours" "$SERVER$core/configmaps/second" "$SERVER/version"

# Content negotiation
200   api $core/configmaps -H 'Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json'
200   api $core/configmaps -H 'Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io'
200   api $core/configmaps/colours -H 'Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io'
200   api "$core/configmaps?includeObject=Object" -H 'Accept: application/json;as=Table;v=v1;g=meta.k8s.io'
200   api $core/configmaps -H 'Accept: application/vnd.kubernetes.protobuf'
406   api $core/configmaps -H 'Accept: application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io'
406   api $core/configmaps -H 'Accept: text/html'
406   api $core/configmaps -H 'Accept: application/json;as=Table;v=v9;g=meta.k8s.io'
406   api $core/configmaps -H 'Accept: application/*'
200   api $core/configmaps -H 'Accept: text/html, */*;q=0.1'
200   api $core/configmaps -H 'Accept:'
200   api /openapi/v2 -H 'Accept-Encoding: gzip'
200   api /openapi/v2 -H 'Accept-Encoding: gzip' --http1.1
200   api /openapi/v2 -H 'Accept: application/com.github.proto-openapi.spec.v2@v1.0+protobuf' -H 'Accept-Encoding: gzip'
200   api /openapi/v2
200   api /openapi/v2 -H 'Accept-Encoding: identity, br;q=0.5'
200   api /api/v1 -H 'Accept-Encoding: gzip'
200   api /apis/apps/v1 --compressed

# Conditions and ranges
304   api /openapi/v2 -H "If-None-Match: $(api /openapi/v2 | sed -n 's/^etag: \(.*\)\r/\1/p')"
200   api /openapi/v2 -H 'If-None-Match: "other"'
304   api /openapi/v2 -H 'If-Modified-Since: Fri, 31 Dec 2100 23:59:59 GMT'
200   api /openapi/v2 -H 'If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT'
412   api /openapi/v2 -H 'If-Match: "other"'
206   api /openapi/v2 -H 'Range: bytes=0-99'
206   api /openapi/v2 -H 'Range: bytes=-100'
206   api /openapi/v2 -H 'Range: bytes=0-9,20-29' -o /dev/null --dump-header - -H 'Accept-Encoding: identity' --http1.1 |
      sed 's/boundary=.*/boundary=/'
416   api /openapi/v2 -H 'Range: bytes=99999999-'
200   api $core/configmaps -H 'Range: bytes=0-9'

# Paths
200   api /
200   api ''
200   api /api/
404   api //api
404   api /api//v1
301/404 api /logs
403   api /logs/ --user-agent browser -H 'Impersonate-User: nobody'
404   api /logs/none
404   api /no/such/path
404   api /apis/no.such.group/v1
404   api /api/v1/nosuchthings
200   api $core/configmaps/
200   api $core/configmaps/%63olours
404   api $core/configmaps/a%2Fb
404   api $core/configmaps/a%2fb
200   api $core/configmaps/%2f
404   api $core/configmaps/%00
404   api $core/configmaps/%C3%BC
404   api $core/configmaps/ü
404   api $core/configmaps/a+b%20c
400   api $core/configmaps/a%25b
404   api $core/configmaps/a\;b=c
404   api "$core/configmaps/a'b(c)*!@:&=~,"
404/500 api /api/v1/namespaces/%2e%2e/configmaps/none
404   api /healthz/none
200   api '/api/v1?'
200   api '/api/v1?&&'
200   api '/api/v1?a=b=c&d&=e&%'
200   api '/api/v1?a=%00%ff'
200   api '/api/v1?a=[]{}|^`'
200   api '/api/v1?a#fragment'

# Health and metrics
200   api /healthz
200   api '/healthz?verbose'
200   api '/readyz?verbose&exclude=etcd'
200   api /livez
200   api /livez/ping
200   api /version
200   api /.well-known/openid-configuration
200   api /openid/v1/jwks
200   api /metrics -o /dev/null --dump-header - -H 'Accept-Encoding: identity' | grep -v -i content-length

# Lists
200   api "$core/configmaps?limit=1"
200   api "$core/configmaps?limit=1&continue=$(curl "$SERVER$core/configmaps?limit=1" |
      sed -n 's/.*"continue":"\([^"]*\)".*/\1/p')"
400   api "$core/configmaps?limit=1&continue=nonsense"
400   api "$core/configmaps?limit=x"
200   api "$core/configmaps?labelSelector=a%3Db"
400   api "$core/configmaps?labelSelector=%3D%3D"
200   api "$core/configmaps?fieldSelector=metadata.name%3Dcolours"
400   api "$core/configmaps?fieldSelector=no.such%3D1"
200   api "$core/configmaps?resourceVersion=0&fieldSelector=metadata.name%3Dcolours"
504   api "$core/configmaps?resourceVersion=99999999999"
400/500 api "$core/configmaps?resourceVersion=x"

# Watches
200   api "$core/configmaps?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dcolours"
200   api "$core/configmaps?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dcolours" --http1.1
200   api "$core/configmaps?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dcolours" -H 'Accept: application/json;as=Table;v=v1;g=meta.k8s.io'
200   api "$core/configmaps?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dcolours" -H 'Accept: application/vnd.kubernetes.protobuf;stream=watch'
200   api "$core/configmaps?watch=true&timeoutSeconds=2&allowWatchBookmarks=true&resourceVersion=0&fieldSelector=metadata.name%3Dcolours" --http1.1
200   api "$core/configmaps?watch=true&timeoutSeconds=1&resourceVersion=1"
200   api "/api/v1/watch/namespaces/$NS/configmaps?timeoutSeconds=1&fieldSelector=metadata.name%3Dcolours"

# Subresources
200   api $apps/deployments/none/status
200   api $apps/deployments/none/scale
404   api $apps/deployments/none/nosuch
404   api $core/pods/none/log
404   api $core/pods/none/exec
404   api "$core/pods/none/exec?command=true&stdout=1"
404   api $core/pods/none/portforward
404   api $core/pods/none/proxy/
404/503 api $core/services/none/proxy/path
404   api $core/services/none:80/proxy/path

# Authentication
200   api /api/v1 -H 'Impersonate-User: bob'
403   api $core/configmaps -H 'Impersonate-User: bob'
200   api $core/configmaps -H 'Impersonate-User: bob' -H 'Impersonate-Group: system:masters'
400/500 api $core/configmaps -H 'Impersonate-Group: system:masters'
