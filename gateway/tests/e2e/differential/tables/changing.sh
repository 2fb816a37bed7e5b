# kubectl verbs that change objects. Each side runs the rows in order, in its own namespace.

# create
0     kubectl create configmap made --from-literal=a=1
1     kubectl create configmap made --from-literal=a=1
0     kubectl create configmap from-files --from-file=kubeconfig-of=ca.crt -o name
0     kubectl create secret generic key --from-literal=password=hidden
0     kubectl create secret docker-registry registry --docker-server=r.example --docker-username=u --docker-password=p
0     kubectl create serviceaccount robot
0     kubectl create role reader --verb=get,list --resource=pods
0     kubectl create rolebinding reader --role=reader --serviceaccount=$NS:robot
0     kubectl create clusterrole $NS --verb=get --resource=pods --dry-run=server -o yaml
0     kubectl create quota few --hard=pods=10,configmaps=50
0     kubectl create poddisruptionbudget kept --selector=app=none --min-available=1 --dry-run=client -o name
0     kubectl create ingress way --rule=example.com/=web:80 -o json
0     kubectl create service nodeport none --tcp=80 --dry-run=server -o name
0     kubectl create priorityclass $NS --value=1 --dry-run=server
0@1.24 kubectl create token robot 2>/dev/null | tr -dc . | wc -c
0@1.24 kubectl create token robot --duration=10m --audience=me 2>/dev/null | tr -dc . | wc -c
1     kubectl create configmap Not_A_Name
1     kubectl create namespace $NS
0     manifest v1:ConfigMap raw '"data":{"a":"1"}' |
      kubectl create --raw "$RAW_PREFIX/api/v1/namespaces/$NS/configmaps" -f -
0     manifest v1:ConfigMap raw '"data":{"a":"2"}' |
      kubectl replace --raw "$RAW_PREFIX/api/v1/namespaces/$NS/configmaps/raw" -f -
0     kubectl delete --raw "$RAW_PREFIX/api/v1/namespaces/$NS/configmaps/raw"
1     echo not json | kubectl create -f -
1     manifest v1:NoSuchKind name | kubectl create -f -
1     manifest v1:ConfigMap typed '"data":{"a":1}' | kubectl create -f -

# apply
0     manifest v1:ConfigMap applied '"data":{"sky":"blue"}' | kubectl apply -f -
0     manifest v1:ConfigMap applied '"data":{"sky":"blue"}' | kubectl apply -f -
0     manifest v1:ConfigMap applied '"data":{"sky":"grey"}' | kubectl apply --dry-run=server -f -
0     manifest v1:ConfigMap applied '"data":{"sky":"grey"}' | kubectl apply --dry-run=client -f -
0     manifest v1:ConfigMap applied '"data":{"sky":"blue"}' | kubectl diff -f -
1     manifest v1:ConfigMap applied '"data":{"sky":"grey"}' | kubectl diff -f - | grep '^[+-]  '; exit ${PIPESTATUS[1]}
0     manifest v1:ConfigMap applied '"data":{"sky":"grey"}' | kubectl apply -f - -o yaml
1     manifest v1:ConfigMap applied '"data":{"sky":"red"}' | kubectl apply --server-side --field-manager=other -f -
0     manifest v1:ConfigMap applied '"data":{"sky":"red"}' |
      kubectl apply --server-side --field-manager=other --force-conflicts -f -
0@1.21 kubectl get configmap applied -o yaml --show-managed-fields
0     kubectl apply view-last-applied configmap/applied
1     manifest v1:ConfigMap made '"data":{"a":"2"}' | kubectl apply set-last-applied -f -
0     manifest v1:ConfigMap made '"data":{"a":"2"}' | kubectl apply set-last-applied --create-annotation -f -
# Since 1.26, a server-side apply removes the annotation of an earlier apply.
1@1.26 manifest v1:ConfigMap applied '"data":{"sky":"black"}' | kubectl apply set-last-applied -f -
0     manifest v1:ConfigMap pruned '"data":{}' | kubectl label --local -f - p=p -o json | kubectl apply -f -
0     manifest v1:ConfigMap kept '"data":{}' | kubectl label --local -f - p=p -o json |
      kubectl apply --prune --selector=p=p "$(prune_list)=core/v1/ConfigMap" -f -
1     manifest v1:ConfigMap applied '"nonsense":1' | kubectl apply -f -
0     manifest apiextensions.k8s.io/v1:CustomResourceDefinition things.example.com '"spec":{"group":"example.com",
      "names":{"kind":"Thing","plural":"things"},"scope":"Namespaced","versions":[{"name":"v1","served":true,
      "storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}' | kubectl apply --dry-run=server --validate=false -f -

# patch, edit, label, annotate
0     kubectl patch configmap made -p '{"data":{"b":"2"}}'
0     kubectl patch configmap made --type=merge -p '{"data":{"a":null}}'
0     kubectl patch configmap made --type=json -p '[{"op":"add","path":"/data/c","value":"3"}]' -o yaml
0     kubectl patch configmap made -p '{"data":{"b":"2"}}'
1     kubectl patch configmap made --type=json -p '[{"op":"test","path":"/data/c","value":"4"}]'
1     kubectl patch configmap none -p '{}'
1     kubectl patch configmap made -p 'no json'
0     EDITOR='sed -i /c:/s/3/4/' kubectl edit configmap made
0     EDITOR=true kubectl edit configmap made
0     EDITOR='sed -i /c:/s/4/5/' kubectl edit configmap made -o json
0     kubectl get configmap made -o jsonpath='{.data}'
0     kubectl label configmap made tier=front
1     kubectl label configmap made tier=back
0     kubectl label configmap made tier=back --overwrite
0     kubectl label configmap made tier-
0     kubectl label configmaps --all all=yes
0     kubectl annotate configmap made note='a longer text, with a comma and ü'
0     kubectl annotate configmap made note-
0     kubectl label node $NODE x=$NS --dry-run=server
0     kubectl taint node $NODE x=y:NoSchedule --dry-run=server
1     kubectl taint node none x=y:NoSchedule
0     kubectl cordon $NODE --dry-run=server
0     kubectl uncordon $NODE --dry-run=server
1     kubectl cordon none
1     kubectl drain none --dry-run=server
0     kubectl set subject rolebinding reader --user=alice
0     kubectl auth reconcile -f <(kubectl get role reader -o yaml) -o name

# replace
0     manifest v1:ConfigMap made '"data":{"z":"26"}' | kubectl replace -f -
1     manifest v1:ConfigMap made '"data":{"z":"27"}' | sed 's/"name"/"resourceVersion":"1","name"/' | kubectl replace -f -
1     manifest v1:ConfigMap none | kubectl replace -f -
0     manifest v1:ConfigMap made '"data":{"z":"28"}' | kubectl replace --force -f -
0     kubectl get configmaps made applied kept -o yaml

# certificates
0     openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null -subj /CN=x -out $TMP/x.csr
      2>/dev/null; manifest certificates.k8s.io/v1:CertificateSigningRequest $NS '"spec":{"request":"'$(base64 -w0 $TMP/x.csr)'",
      "signerName":"example.com/none","usages":["client auth"]}' | kubectl create -f -
0     kubectl get csr $NS
0     kubectl certificate approve $NS
1     kubectl certificate deny $NS
0     kubectl get csr $NS -o jsonpath='{.status.conditions[*].type}'
0     kubectl delete csr $NS
1     kubectl certificate approve none

# delete
0     kubectl delete configmap made
1     kubectl delete configmap made
0     kubectl delete configmap made --ignore-not-found
0     kubectl delete configmap applied --cascade=foreground
0     kubectl delete configmap kept --wait=false --now
0     kubectl delete secret,serviceaccount key robot --ignore-not-found
0     kubectl delete configmaps --all --dry-run=server | sort
0     kubectl delete role,rolebinding --all
1     kubectl delete
0     kubectl get configmaps,secrets,roles -o name | grep -v default-token | sort
