"""Uses the Kubernetes client for Python, and prints the results.

Usage: python_client.py KUBECONFIG NAMESPACE POD. The test in clients.rs starts the pod.
"""

import sys
import threading

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream
from kubernetes.stream.ws_client import ERROR_CHANNEL

kubeconfig, namespace, pod = sys.argv[1:]
config.load_kube_config(kubeconfig)
api = client.CoreV1Api()
apps = client.AppsV1Api()


def step(name):
    print("did", name, flush=True)


version = client.VersionApi().get_code()
assert version.major == "1", version
step("version")

# The watch is open before the events.
start = api.list_namespaced_config_map(namespace).metadata.resource_version
seen = []


def look():
    for event in watch.Watch().stream(
        api.list_namespaced_config_map, namespace, resource_version=start, timeout_seconds=20
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            return


looking = threading.Thread(target=look)
looking.start()
body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="python"), data={"sky": "blue", "sea": "grün"})
assert api.create_namespaced_config_map(namespace, body).data["sea"] == "grün"
step("create")
patched = api.patch_namespaced_config_map("python", namespace, {"data": {"sky": "grey"}})
assert patched.data == {"sky": "grey", "sea": "grün"}
step("patch")
patched.data["sky"] = "red"
assert api.replace_namespaced_config_map("python", namespace, patched).data["sky"] == "red"
step("replace")
names = [item.metadata.name for item in api.list_namespaced_config_map(namespace, limit=1).items]
assert len(names) == 1
assert "python" in [item.metadata.name for item in api.list_namespaced_config_map(namespace).items]
step("list")
try:
    api.create_namespaced_config_map(namespace, body)
    raise AssertionError("it was made twice")
except ApiException as error:
    assert (error.status, "AlreadyExists" in error.body) == (409, True), error
step("conflict")
api.delete_namespaced_config_map("python", namespace)
looking.join(30)
mine = [kind for kind, name in seen if name == "python"]
assert mine == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"], seen
step("watch")
try:
    api.read_namespaced_config_map("python", namespace)
    raise AssertionError("it is still there")
except ApiException as error:
    assert error.status == 404, error
step("delete")
assert apps.list_namespaced_deployment(namespace).items == []

lines = watch.Watch().stream(api.read_namespaced_pod_log, pod, namespace, tail_lines=1)
assert next(lines) == "ready"
step("logs")

command = ["sh", "-c", "read line; echo heard $line; echo error >&2; exit 3"]
session = stream(
    api.connect_get_namespaced_pod_exec,
    pod,
    namespace,
    command=command,
    stdin=True,
    stdout=True,
    stderr=True,
    tty=False,
    _preload_content=False,
)
session.write_stdin("some words\n")
session.run_forever(timeout=20)
assert (session.read_stdout(), session.read_stderr()) == ("heard some words\n", "error\n")
assert session.returncode == 3, session.read_channel(ERROR_CHANNEL)
print("exec speaks", session.subprotocol if hasattr(session, "subprotocol") else session.sock.subprotocol)
step("exec")

forward = portforward(api.connect_get_namespaced_pod_portforward, pod, namespace, ports="8080")
socket = forward.socket(8080)
socket.setblocking(True)
socket.sendall(b"GET /page HTTP/1.0\r\nHost: pod\r\n\r\n")
answer = b""
while chunk := socket.recv(65536):
    answer += chunk
assert answer.startswith(b"HTTP/1.") and b" 200 OK" in answer and answer.endswith(b"the page\n"), answer
assert forward.error(8080) is None
step("port-forward")
