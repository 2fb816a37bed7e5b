"""Commands for the cluster: kubectl, helm and the images of its node."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

CHARTS = Path(__file__).resolve().parent.parent
ROOT = CHARTS.parent.parent
LABEL = "app.kubernetes.io/component in (server, agent)"
# The pods of all optional features of agentk, too.
ALL_LABEL = "app.kubernetes.io/component in (server, agent, admission, audit)"


class AcceptanceError(Exception):
    """Says what was expected and what happened."""


def complete(*command: str, text: str | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, which may be a failure."""
    try:
        return subprocess.run(command, input=text, text=True, capture_output=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise AcceptanceError(f"`{' '.join(command)[:200]}` has not ended within {timeout:.0f} s") from error


def run(*command: str, text: str | None = None, timeout: float = 120) -> str:
    result = complete(*command, text=text, timeout=timeout)
    if result.returncode != 0:
        raise AcceptanceError(f"`{' '.join(command)[:200]}` failed: {result.stderr.strip()[-1500:]}")
    return result.stdout


def eventually(what: str, seconds: float, condition: Callable[[], object]) -> float:
    """Waits until the condition holds, and returns the seconds that it took."""
    start, last = time.monotonic(), None
    while time.monotonic() < start + seconds:
        try:
            if condition():
                return time.monotonic() - start
        except (AcceptanceError, OSError) as error:
            last = error
        time.sleep(0.2)
    raise AcceptanceError(f"not within {seconds:.0f} s: {what}" + (f" ({last})" if last else ""))


class Cluster:
    def __init__(self, helm: str, prefix: str) -> None:
        self.helm_program = helm
        self.kas, self.agentk, self.work = (f"{prefix}-{name}" for name in ("kas", "agentk", "work"))
        # A cluster for tests has its files beside its kubeconfig.
        socket = Path(os.environ["KUBECONFIG"]).parent / "containerd/containerd.sock"
        self.ctr = ("ctr", "--address", os.environ.get("CONTAINERD_ADDRESS", str(socket)), "--namespace", "k8s.io")

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return run("kubectl", *arguments, text=text)

    def objects(self, *arguments: str) -> list[dict]:
        return json.loads(self.kubectl("get", "--output=json", *arguments))["items"]

    def apply(self, namespace: str, *objects: dict) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", f"--namespace={namespace}", "--filename=-", text=json.dumps(items))

    def secret(self, namespace: str, name: str, **files: str) -> None:
        """Writes a secret. Keys have a dot where the name of the argument has an underscore."""
        data = {key.replace("_", "."): value for key, value in files.items()}
        self.apply(namespace, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})

    def helm(self, command: str, namespace: str, *arguments: str, text: str | None = None) -> str:
        return run(self.helm_program, command, f"--namespace={namespace}", *arguments, text=text, timeout=180)

    def pods(self, namespace: str, selector: str = LABEL) -> dict[str, dict]:
        """Returns the pods of a chart that are not being deleted, by their names."""
        items = self.objects("pods", f"--namespace={namespace}", f"--selector={selector}")
        return {item["metadata"]["name"]: item for item in items if "deletionTimestamp" not in item["metadata"]}

    def ready(self, namespace: str) -> set[str]:
        def is_ready(pod: dict) -> bool:
            return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", []))

        return {name for name, pod in self.pods(namespace).items() if is_ready(pod)}

    def restarts(self, namespace: str) -> int:
        return sum(status["restartCount"] for pod in self.pods(namespace).values() for status in pod["status"]["containerStatuses"])

    def process(self, pod: dict) -> str:
        """Returns the process id of the program in a pod."""
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        return next(line.split()[1] for line in run(*self.ctr, "tasks", "list").splitlines() if line.startswith(container))

    def refresh(self, namespace: str) -> None:
        """Makes the kubelet look at the pods now. It would update their files within a minute. A pod of an old rollout may disappear meanwhile."""
        for pod in self.pods(namespace):
            subprocess.run(["kubectl", "annotate", "pod", pod, f"--namespace={namespace}", "--overwrite", f"refreshed={time.time()}"],
                           capture_output=True, check=False)

    def import_images(self, directory: Path, tag: str, tags: tuple[str, ...], prefix: str = "library/") -> None:
        """Imports the archives, and gives each image further tags in a repository that begins with the prefix."""
        for name in ("kas", "agentk"):
            run(*self.ctr, "images", "import", str(directory / f"{name}.oci.tar"))
            for other in tags:
                run(*self.ctr, "images", "tag", "--force", f"docker.io/library/{name}:{tag}", f"docker.io/{prefix}{name}:{other}")

    def remove_images(self, tags: tuple[str, ...], prefix: str = "library/") -> None:
        for name in ("kas", "agentk"):
            subprocess.run([*self.ctr, "images", "rm", *(f"docker.io/{prefix}{name}:{tag}" for tag in tags)], capture_output=True, check=False)

    def create_namespaces(self) -> None:
        for namespace in (self.kas, self.agentk, self.work):
            self.kubectl("create", "namespace", namespace)

    def remove(self) -> None:
        """Removes what a run has made, also after a failure."""
        for release, namespace in (("agentk", self.agentk), ("kas", self.kas)):
            subprocess.run([self.helm_program, "uninstall", release, f"--namespace={namespace}"], capture_output=True, check=False)
        subprocess.run(["kubectl", "delete", "namespace", "--wait=false", "--ignore-not-found", self.kas, self.agentk, self.work],
                       capture_output=True, check=False)

    def print_state(self) -> None:
        for namespace in (self.kas, self.agentk):
            print(f"== {namespace}")
            for command in (["get", "pods", "--output=wide"], ["get", "events"], ["logs", f"--selector={ALL_LABEL}", "--prefix", "--tail=30"]):
                result = subprocess.run(["kubectl", f"--namespace={namespace}", *command], text=True, capture_output=True, check=False)
                print(result.stdout + result.stderr)
