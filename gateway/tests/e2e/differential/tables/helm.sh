# The requests of helm for install, upgrade, status, rollback and uninstall (helm.sh/helm/v3, pkg/storage/driver and
# pkg/kube): a release is a secret, looked up by its labels; objects are applied as three-way patches and waited for.

# reachability and discovery
200   api /version
200   api /openapi/v2 -H 'Accept: application/com.github.proto-openapi.spec.v2@v1.0+protobuf'
200   api /api -H 'Accept: application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io,application/json'
200   api /apis -H 'Accept: application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io,application/json'
200   api /apis/apps/v1?timeout=32s

# install
200   api "$core/secrets?labelSelector=name%3Dshop%2Cowner%3Dhelm"
404   api $core/secrets/sh.helm.release.v1.shop.v1
404   api $apps/deployments/web
201   send POST $core/secrets "$(release 1 pending-install)"
409   send POST $core/secrets "$(release 1 pending-install)"
201   send POST "$core/configmaps?fieldManager=helm" "$(manifest v1:ConfigMap shop '"data":{"sky":"blue"}')"
201   send POST "$apps/deployments?fieldManager=helm" "$(deployment 1)"
0     kubectl rollout status deployment/web --timeout=50s | tail -n1
0     curl "$SERVER$apps/deployments?watch=true&timeoutSeconds=2&fieldSelector=metadata.name%3Dweb&resourceVersion=$(
      kubectl get deployment web -o jsonpath={.metadata.resourceVersion})"
0     curl "$SERVER$apps/deployments?limit=500&fieldSelector=metadata.name%3Dweb" | tr , '\n' | grep readyReplicas
200   send PUT $core/secrets/sh.helm.release.v1.shop.v1 "$(release 1 deployed)"

# status and list
200   api "$core/secrets?labelSelector=owner%3Dhelm"
200   api "$core/secrets?labelSelector=name%3Dshop%2Cowner%3Dhelm%2Cstatus%3Ddeployed"
200   api $core/secrets/sh.helm.release.v1.shop.v1 -H 'Accept: application/vnd.kubernetes.protobuf,application/json' -o /dev/null
      --dump-header -
0     kubectl get secrets --selector=owner=helm,status=deployed --output=name

# upgrade
201   send POST $core/secrets "$(release 2 pending-upgrade)"
200   patch strategic-merge "$core/configmaps/shop?fieldManager=helm" '{"data":{"sky":"grey"}}'
200   patch strategic-merge "$apps/deployments/web?fieldManager=helm" '{"spec":{"replicas":0}}'
200   patch merge "$core/configmaps/shop?fieldManager=helm" '{"data":{"sea":null,"sun":"up"}}'
200   patch apply "$core/configmaps/shop?fieldManager=helm4&force=true"
      '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"shop"},"data":{"sky":"red"}}'
0     until_it sh -c 'test -z "$(kubectl get pods --selector=app=web -o name)"'
0@1.23 kubectl wait --for=delete pods --selector=app=web --timeout=40s >/dev/null
200   send PUT $core/secrets/sh.helm.release.v1.shop.v1 "$(release 1 superseded)"
200   send PUT $core/secrets/sh.helm.release.v1.shop.v2 "$(release 2 deployed)"

# a hook, and its log
201   send POST "/apis/batch/v1/namespaces/$NS/jobs?fieldManager=helm" '{"metadata":{"name":"hook","annotations":
      {"helm.sh/hook":"post-upgrade"}},"spec":{"backoffLimit":0,"template":{"spec":{"restartPolicy":"Never","containers":[{
      "name":"main","image":"busybox:1.35","command":["echo","hooked"]}]}}}}' -o /dev/null --dump-header -
0     kubectl wait --for=condition=Complete job/hook --timeout=50s
0     kubectl logs job/hook

# rollback and uninstall
200   patch strategic-merge "$core/configmaps/shop?fieldManager=helm" '{"data":{"sky":"blue"}}'
200   send DELETE "/apis/batch/v1/namespaces/$NS/jobs/hook" '{"propagationPolicy":"Background"}' -o /dev/null --dump-header -
200   send DELETE $apps/deployments/web '{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}'
200   send DELETE $core/configmaps/shop '{"propagationPolicy":"Background"}'
404   send DELETE $core/configmaps/shop '{"propagationPolicy":"Background"}'
200   api $core/secrets/sh.helm.release.v1.shop.v2 -X DELETE
200   api "$core/secrets?labelSelector=owner%3Dhelm" -X DELETE -o /dev/null --dump-header -
200   api "$core/secrets?labelSelector=name%3Dshop%2Cowner%3Dhelm"
