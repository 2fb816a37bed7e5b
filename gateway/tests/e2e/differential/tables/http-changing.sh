# HTTP requests that change objects. Each side runs the rows in order, in its own namespace.

201   send POST $core/configmaps '{"metadata":{"name":"made"},"data":{"a":"1"}}'
409   send POST $core/configmaps '{"metadata":{"name":"made"}}'
201   send POST $core/configmaps '{"metadata":{"name":"old"},"data":{"a":"1"}}' --http1.1
201   send POST "$core/configmaps?dryRun=All&fieldManager=me" '{"metadata":{"name":"dry"}}'
422   send POST $core/configmaps '{"metadata":{"name":"Not_A_Name"}}'
400   send POST $core/configmaps '{"metadata":'
400   send POST $core/configmaps '{"metadata":{"name":"typed"},"data":{"a":1}}'
400   send POST $core/configmaps ''
400   send POST $core/configmaps '{"apiVersion":"v1","kind":"Secret","metadata":{"name":"other"}}'
400   send POST $core/configmaps '{"metadata":{"name":"x","namespace":"elsewhere"}}'
415   api $core/configmaps --data-binary @ca.crt -H 'Content-Type: application/x-pem-file'
415   api $core/configmaps --data-binary '{}' -H 'Content-Type: text/plain'
201   api $core/configmaps --data-binary 'metadata: {name: yaml}' -H 'Content-Type: application/yaml'
201   send POST $core/configmaps '{"metadata":{"name":"chunked"}}' -H 'Transfer-Encoding: chunked' --http1.1
201   send POST $core/configmaps '{"metadata":{"name":"expected"}}' -H 'Expect: 100-continue' --http1.1
201   send POST $core/configmaps '{"metadata":{"name":"protobuf"}}' -H 'Accept: application/vnd.kubernetes.protobuf'
      -o /dev/null --dump-header -
413   api $core/configmaps -H 'Content-Type: application/json' --data-binary @<(head -c 3145729 /dev/zero | tr '\0' ' ')
413   api $core/configmaps -H 'Content-Type: application/json' --http1.1 -H 'Expect:'
      --data-binary @<(head -c 3145729 /dev/zero | tr '\0' ' ')
413   api $core/configmaps -H 'Content-Type: application/json' --http1.1 -H 'Transfer-Encoding: chunked'
      --data-binary @<(head -c 3145729 /dev/zero | tr '\0' ' ')
404   api $core/nosuchthings -H 'Content-Type: application/json' --http1.1 -H 'Expect:'
      --data-binary @<(head -c 3145729 /dev/zero | tr '\0' ' ')
404   send POST /no/such/path '{}'
405   send POST $core/configmaps/made '{}'

# PUT
200   send PUT $core/configmaps/made '{"metadata":{"name":"made"},"data":{"a":"2"}}'
404   send PUT $core/configmaps/put '{"metadata":{"name":"put"}}'
201   send POST $core/configmaps '{"metadata":{"name":"put"}}'
400   send PUT $core/configmaps/made '{"metadata":{"name":"other"}}'
409   send PUT $core/configmaps/made '{"metadata":{"name":"made","resourceVersion":"1"}}'
405   send PUT $core/configmaps '{}'

# PATCH, in each of its types
200   patch merge $core/configmaps/made '{"data":{"b":"2"}}'
200   patch strategic-merge $core/configmaps/made '{"data":{"c":"3"}}'
200   patch json $core/configmaps/made '[{"op":"remove","path":"/data/b"}]'
200   patch apply "$core/configmaps/made?fieldManager=me&force=true" '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"made"},
      "data":{"d":"4"}}'
409   patch apply "$core/configmaps/made?fieldManager=you" '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"made"},
      "data":{"d":"5"}}'
422   patch apply $core/configmaps/made '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"made"}}'
422   patch json $core/configmaps/made '[{"op":"test","path":"/data/c","value":"x"}]'
400   patch json $core/configmaps/made '{}'
400/500 patch merge $core/configmaps/made 'no json'
404   patch merge $core/configmaps/none '{}'
415   api $core/configmaps/made --request PATCH --data-binary '{}' -H 'Content-Type: application/json'
200   patch merge "$core/configmaps/made?dryRun=All" '{"data":{"b":"9"}}'
200   api $core/configmaps/made

# Subresources
201   send POST $apps/deployments "$(deployment 0)"
0     until_it kubectl get deployment web -o jsonpath={.status.observedGeneration}; sleep 1
200   patch merge $apps/deployments/web/status '{"status":{"conditions":[]}}'
200   patch merge $apps/deployments/web/scale '{"spec":{"replicas":0}}'
201   send POST $core/serviceaccounts/default/token '{"spec":{"expirationSeconds":600}}'
422   send POST $core/serviceaccounts/default/token '{"spec":{"expirationSeconds":1}}'
404   send POST $core/serviceaccounts/none/token '{}'
404   send POST $core/pods/none/eviction
      '{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"none","namespace":"'$NS'"}}'
404   send POST $core/pods/none/binding '{"metadata":{"name":"none"},"target":{"kind":"Node","name":"'$NODE'"}}'
404   send POST "$core/pods/none/exec?command=true&stdout=1" ''
201   send POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews
      '{"spec":{"resourceAttributes":{"verb":"list","resource":"pods"}}}'
201   send POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews
      '{"spec":{"resourceAttributes":{"verb":"list","resource":"pods"}}}' -H 'Impersonate-User: bob'
0     send POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews '{"spec":{"namespace":"'$NS'"}}' --no-include |
      tr '{}' '\n' | sort
201   send POST /apis/authorization.k8s.io/v1/subjectaccessreviews
      '{"spec":{"user":"bob","resourceAttributes":{"verb":"list","resource":"pods"}}}'
201   send POST /apis/authentication.k8s.io/v1/tokenreviews '{"spec":{"token":"nonsense"}}'
403   send POST $core/configmaps '{"metadata":{"name":"no"}}' -H 'Impersonate-User: bob'
201   send POST $core/configmaps '{"metadata":{"name":"yes"}}' -H 'Impersonate-User: bob'
      -H 'Impersonate-Group: system:masters'
201   send POST $core/events '{"metadata":{"name":"e"},"involvedObject":{"namespace":"'$NS'"},"reason":"Told"}'

# DELETE
200   api $core/configmaps/made --request DELETE
404   api $core/configmaps/made --request DELETE
200   send DELETE $core/configmaps/old '{"propagationPolicy":"Foreground"}'
409   send DELETE $core/configmaps/put '{"preconditions":{"uid":"other"}}' | sed 's/in record ([^)]*)//'
200   api "$core/configmaps/put?gracePeriodSeconds=0&dryRun=All" --request DELETE
400/500 send DELETE $core/configmaps/put '{"propagationPolicy":'
422   send DELETE $core/configmaps/put '{"propagationPolicy":"Sideways"}'
200   api "$core/configmaps?labelSelector=none" --request DELETE
200   api "$core/configmaps?fieldSelector=metadata.name%3Dput" --request DELETE
200   api $core --request DELETE
