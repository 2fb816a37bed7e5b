# kubectl commands with long responses and with upgrades.

setup cat >web.json <<'JSON'
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {
      "restartPolicy": "Always", "terminationGracePeriodSeconds": 0, "containers": [
      {"name": "main", "image": "busybox:1.35", "command": ["sh", "-c",
      "mkdir -p /www; echo page >/www/index.html; for i in 1 2 3 4 5; do echo line $i; done; exec httpd -f -p 8080 -h /www"]},
      {"name": "twice", "image": "busybox:1.35", "command": ["sh", "-c",
      "echo here; [ -e /seen/once ] && exec sleep 1000; touch /seen/once; echo once; exit 3"],
      "volumeMounts": [{"name": "seen", "mountPath": "/seen"}]}],
      "volumes": [{"name": "seen", "emptyDir": {}}]}}
      JSON
setup kubectl create -f web.json
setup kubectl run done --image=busybox:1.35 --restart=Never --command -- sh -c 'echo one; sleep 1; echo two'
setup kubectl create service clusterip web --tcp=8080:8080
setup until_it sh -c 'kubectl logs web -c twice --previous | grep -q once'
setup kubectl wait --for=condition=Ready pod/web --timeout=50s
setup until_it sh -c 'test "$(kubectl get pod done -o jsonpath={.status.phase})" = Succeeded'

# logs
0@1.24 kubectl logs web
0     kubectl logs web --container=main
0     kubectl logs web --container=twice
0     kubectl logs web --container=twice --previous
0     kubectl logs web --all-containers --prefix | sort
0     kubectl logs web --container=main --tail=2
0     kubectl logs web --container=main --tail=0
0     kubectl logs web --container=main --timestamps
0     kubectl logs web --container=main --since=1h --limit-bytes=9
0     kubectl logs web --container=main --since-time=2100-01-01T00:00:00Z
0     kubectl logs --selector=app=web --all-containers --tail=-1 --max-log-requests=3 | sort
0     kubectl logs service/web --container=main
0     kubectl logs done --follow
0     kubectl logs done --follow --pod-running-timeout=1s --ignore-errors
124   timeout 2 kubectl logs web --container=main --follow
1     kubectl logs web --container=none
1     kubectl logs web --container=main --previous
1     kubectl logs none
1     kubectl logs none --follow

# exec
0     kubectl exec web -- echo out
0     kubectl exec web -- sh -c 'echo error >&2'
0     kubectl exec web --container=twice -- cat /seen/once
0     kubectl exec deployment/none -- true || kubectl exec pod/web -- printf '%s|' 'two words' 'ü' '' '*' '$HOME' '"' "'"
3     kubectl exec web -- sh -c 'echo out; exit 3'
137   kubectl exec web -- sh -c 'kill -9 $$'
255   kubectl exec web -- sh -c 'exit 255'
126   kubectl exec web -- no-such-program 2>/dev/null; code=$?; test $code -ge 1; exit 126
1     kubectl exec web --container=none -- true
1     kubectl exec none -- true
0     printf 'echo $((6 * 7))\nexit 0\n' | kubectl exec --stdin web -- sh
9     printf 'exit 9\n' | kubectl exec --stdin web -- sh
0     seq 200000 | kubectl exec --stdin web -- sha256sum
0     kubectl exec web -- sh -c 'seq 300000' | sha256sum
0     kubectl exec web -- sh -c 'seq 50000; seq 50000 >&2' 2>&1 | wc -c
0     seq 200000 | kubectl exec --stdin web -- cat | sha256sum
# The end of an input without bytes is sometimes lost inside the pod, also without the tunnel (see INPUTS in upgrades.rs).
0     echo line | kubectl exec --stdin web -- sh -c 'read line; wc -c'
0     kubectl exec web -- sh -c 'seq 100000000' 2>/dev/null | head -n1
4     script --quiet --return --command 'kubectl exec --stdin --tty web -- sh -c "exit 4" 2>/dev/null' /dev/null </dev/null >/dev/null

# cp; from a pod, kubectl waits neither for the messages of tar (on kubectl's standard output) nor for its exit code
0     head -c 1000000 /dev/zero >$TMP/zero; kubectl cp $TMP/zero web:/tmp/$SIDE
0     kubectl exec web -- sha256sum /tmp/$SIDE
0     kubectl cp web:/tmp/$SIDE $TMP/back >/dev/null 2>&1; cmp $TMP/zero $TMP/back
0     mkdir -p $TMP/tree/a/b; echo leaf >$TMP/tree/a/b/c; kubectl cp $TMP/tree web:/tmp/tree-$SIDE
0     rm -rf $TMP/copy; kubectl cp web:/tmp/tree-$SIDE $TMP/copy >/dev/null 2>&1; cat $TMP/copy/a/b/c
0     kubectl cp --container=twice web:/seen $TMP/seen >/dev/null 2>&1; ls $TMP/seen
1     kubectl cp web:/no/such/file $TMP/none >/dev/null 2>&1; test -e $TMP/none
1     kubectl cp none:/etc $TMP/none

# attach, port-forward, and the API server's own proxy
124   timeout 2 kubectl attach web --container=main
1     kubectl attach web --container=none
0     forwarded pod/web /index.html
0     forwarded service/web /index.html
0     forwarded pod/web /none
1     kubectl port-forward pod/none :8080
1     kubectl port-forward service/web :81
0     kubectl get --raw "$RAW_PREFIX/api/v1/namespaces/$NS/pods/web:8080/proxy/index.html"
1     kubectl get --raw "$RAW_PREFIX/api/v1/namespaces/$NS/pods/web:8081/proxy/"
1     kubectl debug web --image=busybox:1.35 --container=debug
