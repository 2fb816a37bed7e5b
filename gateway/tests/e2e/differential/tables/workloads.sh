# kubectl commands for workloads. Each side runs the rows in order, in its own namespace.

0     kubectl create deployment web --image=busybox:1.35 --replicas=1 -- sleep 1000
0     kubectl patch deployment web -p '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":0}}}}'
0     kubectl rollout status deployment/web --timeout=50s | tail -n1
0     kubectl wait --for=condition=Available deployment/web --timeout=30s
0     kubectl set image deployment/web busybox=busybox:1.35
0     kubectl set env deployment/web COLOUR=blue
0     kubectl set env deployment/web --list
0     kubectl set resources deployment/web --limits=memory=64Mi
0     kubectl rollout pause deployment/web
0     kubectl set serviceaccount deployment/web default
1     kubectl rollout pause deployment/web
0     kubectl rollout resume deployment/web
0     kubectl rollout status deployment/web --timeout=50s | tail -n1
0     kubectl rollout undo deployment/web --dry-run=server
0     kubectl rollout undo deployment/web --to-revision=2
1     kubectl rollout undo deployment/web --to-revision=77
0     kubectl rollout history deployment/web | tail -n+2 | wc -l
1     kubectl rollout restart deployment/none
0     kubectl expose deployment web --port=80 --target-port=8080 --name=shown
1     kubectl expose deployment web --port=80 --target-port=8080 --name=shown
0     kubectl set selector service shown app=other
0     kubectl get service shown -o jsonpath='{.spec.selector}{.spec.ports}'
0     kubectl autoscale deployment web --min=1 --max=3 --cpu-percent=80
0     kubectl get hpa web -o jsonpath='{.spec}'
0     kubectl patch deployment web -p '{"spec":{"replicas":0}}'
0     kubectl delete pods --selector=app=web --grace-period=0 --force >/dev/null 2>&1
0     until_it sh -c 'test -z "$(kubectl get pods --selector=app=web -o name)"'; kubectl get pods --selector=app=web
0@1.31 kubectl wait --for=jsonpath='{.status.observedGeneration}' deployment/web --timeout=20s
0     kubectl create job once --image=busybox:1.35 -- sh -c 'echo worked'
0     kubectl wait --for=condition=Complete job/once --timeout=50s
0     kubectl logs job/once
0     kubectl get job once -o jsonpath='{.status.succeeded}'
0     kubectl delete job once --cascade=background
0     kubectl run alone --image=busybox:1.35 --restart=Never --labels=a=b --env=X=y --dry-run=server -o yaml |
      sed 's/\(default-token\|kube-api-access\)-.*//'
0     kubectl run alone --image=busybox:1.35 --restart=Never --command -- sh -c 'echo said; exit 0'
0     until_it sh -c 'test "$(kubectl get pod alone -o jsonpath={.status.phase})" = Succeeded'
0@1.23 kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/alone --timeout=50s
0     kubectl logs alone
0     kubectl delete pod alone --grace-period=0 --force
# The container prints after the end of its input (see READ_ALL in upgrades.rs).
5     echo words | kubectl run reader --image=busybox:1.35 --restart=Never --rm --stdin --quiet --command --
      sh -c 'words=$(cat); echo heard $words; exit 5'
1     kubectl debug none --image=busybox:1.35
0     kubectl delete deployment web --cascade=orphan
0     kubectl get replicasets -o name | wc -l
0     kubectl delete replicasets --all --wait=false >/dev/null
