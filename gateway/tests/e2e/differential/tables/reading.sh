# kubectl verbs that only read. Both sides read the same objects.

setup kubectl create configmap colours --from-literal=sky=blue --from-literal=sea=grün
setup kubectl create configmap empty
setup kubectl create secret generic key --from-literal=password=hidden
setup kubectl create quota few --hard=pods=20
setup kubectl create service clusterip web --tcp=80:8080
setup kubectl create deployment web --image=busybox:1.35 -- sleep 1000
setup kubectl rollout status deployment/web --timeout=50s

# The server
0     kubectl version
0     kubectl version --output=json
0     kubectl api-versions
0     kubectl api-resources
0     kubectl api-resources --namespaced=false --output=wide
0     kubectl api-resources --api-group=apps --verbs=list --output=name
0     kubectl cluster-info
0     kubectl cluster-info dump --namespaces=$NS --output=yaml | grep -v resourceVersion | sha256sum
0     kubectl explain pod
0     kubectl explain deployment.spec.strategy --recursive
0     kubectl explain ingress --api-version=networking.k8s.io/v1
1     kubectl explain no.such.kind

# get, in every format
0     kubectl get pods
0     kubectl get pods --output=wide
0     kubectl get pods --output=yaml
0     kubectl get pods --output=json
0     kubectl get pods --output=name
0     kubectl get pods --output=jsonpath='{range .items[*]}{.metadata.uid}{"\n"}{end}'
0     kubectl get pods --output=go-template='{{range .items}}{{.status.podIP}}{{end}}'
0     kubectl get pods --output=custom-columns=NAME:.metadata.name,NODE:.spec.nodeName
0     kubectl get pods --no-headers
0     kubectl get pods --show-labels --label-columns=app
0     kubectl get pods --show-kind --sort-by=.metadata.name
0     kubectl get pods --server-print=false
0     kubectl get pods --selector=app=web
0     kubectl get pods --selector='app in (web,other),!tier'
0     kubectl get pods --field-selector=status.phase=Running,spec.nodeName=$NODE
0     kubectl get pods --all-namespaces --field-selector=metadata.namespace=$NS
0     kubectl get all
0     kubectl get pods,configmaps,secrets,services,endpoints --ignore-not-found
0     kubectl get configmap/colours deployment/web
0     kubectl get configmaps --chunk-size=1 --output=name
0@1.21 kubectl get configmaps --show-managed-fields --output=yaml
0     kubectl get configmap colours --output=jsonpath='{.data.sea}'
0     kubectl get secrets --output=yaml
0     kubectl get nodes
0     kubectl get nodes --output=wide
0     kubectl get namespace $NS --output=json
0     kubectl get clusterrole view --output=yaml
0@1.24 kubectl get deployment web --subresource=status
0@1.24 kubectl get deployment web --subresource=status --output=json
0     kubectl get events --output=name
0     kubectl get configmap none --ignore-not-found
0     kubectl get --raw "$RAW_PREFIX/api/v1/namespaces/$NS/configmaps/colours"
0     kubectl get --raw "$RAW_PREFIX/openapi/v2" | sha256sum
0     kubectl get --raw "$RAW_PREFIX/readyz?verbose"
0     proxied "$PREFIX/api/v1/namespaces/$NS/configmaps/colours"
0     proxied "$PREFIX/version"
0@1.23 proxied /api/v1/namespaces/$NS/configmaps/colours --append-server-path
0@1.23 proxied /version --append-server-path
124   timeout 2 kubectl get configmaps --watch
124   timeout 2 kubectl get configmaps --watch --output=json
124   timeout 2 kubectl get configmaps --watch-only
0     kubectl get configmaps --watch --request-timeout=1s

# describe, explain and others
0     kubectl describe pods
# kubectl 1.20 prints the keys in the order of a Go map, which changes from run to run.
0     kubectl describe configmap colours | sort
0     kubectl describe secret key
0     kubectl describe service web
0     kubectl describe deployment web
0     kubectl describe replicaset
0     kubectl describe quota few
0     kubectl describe namespace $NS
0     kubectl describe serviceaccount default
0     kubectl describe clusterrole view
0@1.26 kubectl events --for=deployment/web --output=name
0     kubectl rollout status deployment/web
0     kubectl rollout history deployment/web
0     kubectl rollout history deployment/web --revision=1
0     kubectl wait --for=condition=Available deployment/web
0@1.23 kubectl wait --for=jsonpath='{.status.phase}'=Running pods --all
1     kubectl wait --for=delete deployment/web --timeout=0
1     kubectl wait --for=condition=NoSuch deployment/web --timeout=0
1     timed_out kubectl wait --for=delete deployment/web --timeout=3s
1     timed_out kubectl wait --for=condition=NoSuch deployment/web --timeout=3s

# auth
0     kubectl auth can-i create pods
0     kubectl auth can-i --list
0     kubectl auth can-i get pods --subresource=log
1     kubectl auth can-i list secrets --as=nobody
0     kubectl auth can-i list secrets --as=nobody --as-group=system:masters
0/1@1.27 kubectl auth whoami
0     kubectl get pods --as=nobody --as-group=system:masters --output=name
1     kubectl get pods --as=nobody

# errors of the cluster
1     kubectl get pod none
1     kubectl get nosuchkind
1     kubectl get pods --field-selector=no.such.field=1
1     kubectl get pods --selector='=='
1     kubectl describe pod none
1     kubectl top nodes
1     kubectl top pods
1     kubectl get --raw "$RAW_PREFIX/no/such/path"
1     kubectl rollout status deployment/none
1     kubectl get configmaps --output=jsonpath='{.nothing'
