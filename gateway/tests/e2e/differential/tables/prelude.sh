# The shell functions and variables of rows.

# api PATH [CURL OPTION...]: prints head and body of the response of this side's server.
api() {
  local path=$1
  shift
  curl --include "$SERVER$path" "$@"
}

# manifest KIND NAME JSON: prints an object with additional fields.
manifest() {
  printf '{"apiVersion":"%s","kind":"%s","metadata":{"name":"%s"}%s}' "${1%:*}" "${1#*:}" "$2" "${3:+,$3}"
}

# until_it COMMAND...: repeats a command until it succeeds.
until_it() {
  for _ in {1..200}; do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  return 1
}

# beside FILE COMMAND...: starts a command with its output in a file, and stops it when the row ends.
beside() {
  local file=$1
  shift
  "$@" >"$file" 2>&1 &
  trap "kill $!" EXIT
}

# timed_out COMMAND...: runs a command whose time is over before it succeeds. kubectl has one error for a time that is over before the first
# list, and another one afterwards, which the speed of the machine decides. Both become one; all other errors stay.
timed_out() {
  local code
  {
    "$@" 2>&1 >&3 | sed -E 's/^.*(timed out waiting for the condition|context deadline exceeded).*$/the time is over/' >&2
    code=${PIPESTATUS[0]}
  } 3>&1
  return "$code"
}

# forwarded TARGET PATH: requests a path through kubectl port-forward.
forwarded() {
  beside "$TMP/forward" kubectl port-forward "$1" :8080
  until_it grep -q Forwarding "$TMP/forward" || cat "$TMP/forward"
  curl "http://127.0.0.1:$(sed -n 's/Forwarding from 127.0.0.1:\([0-9]*\).*/\1/p' "$TMP/forward")$2"
}

# proxied PATH [OPTION...]: requests a path through kubectl proxy with options.
proxied() {
  rm -f "$TMP/proxy.sock"
  beside "$TMP/proxy" kubectl proxy --unix-socket="$TMP/proxy.sock" "${@:2}"
  until_it test -S "$TMP/proxy.sock"
  curl --unix-socket "$TMP/proxy.sock" "http://localhost$1"
}

# prune_list: prints the option of kubectl apply --prune for kinds, which is --prune-whitelist before kubectl 1.26.
prune_list() {
  kubectl apply --help | grep --only-matching -e '--prune-allowlist' -e '--prune-whitelist' | sort | head --lines=1
}

# The API paths of this side's namespace.
core=/api/v1/namespaces/$NS
apps=/apis/apps/v1/namespaces/$NS

# send METHOD PATH BODY [CURL OPTION...]: sends JSON.
send() {
  local method=$1 path=$2 body=$3
  shift 3
  api "$path" --request "$method" --header 'Content-Type: application/json' --data-binary "$body" "$@"
}

# patch TYPE PATH BODY [CURL OPTION...]: sends a PATCH; TYPE is json, merge, strategic-merge or apply.
patch() {
  local type=$1 path=$2 body=$3
  shift 3
  case $type in apply) type=apply-patch+yaml ;; *) type=$type-patch+json ;; esac
  api "$path" --request PATCH --header "Content-Type: application/$type" --data-binary "$body" "$@"
}

# release VERSION STATUS: prints the record of a release.
release() {
  printf '{"metadata":{"name":"sh.helm.release.v1.shop.v%s","labels":{"modifiedAt":"1700000000","name":"shop",
    "owner":"helm","status":"%s","version":"%s"}},"type":"helm.sh/release.v1","data":{"release":"%s"}}' \
    "$1" "$2" "$1" "$(seq 2000 | gzip -n | base64 -w0 | base64 -w0)"
}

# deployment REPLICAS: prints a deployment as helm sends it.
deployment() {
  printf '{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web",
    "labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"shop"}},
    "spec":{"replicas":%s,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},
    "spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"main","image":"busybox:1.35",
    "command":["sleep","1000"]}]}}}}' "$1"
}
