"""Both charts in the cluster of KUBECONFIG, with the services beside it: how they are installed, replaced under load, and removed."""

import contextlib
import functools
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster import CHARTS, ROOT, AcceptanceError, Cluster, eventually
from load import Caller, Exec, Requests, Watches
from network import Authority, Network, bridge_address, missing_programs
from pods import Deletions

AGENT = "acceptance"
RATE = 200
WATCHES = 20
EXECS = 5
LISTEN_GRACE = 3
# Kinds of the Prometheus operator, as in the values of the chart, which takes one kind of monitor.
MONITORING = ("podMonitor", "prometheusRule")


class Token:
    def __init__(self, kind: str) -> None:
        self.text = f"kas-{kind}-{secrets.token_urlsafe(32)}"
        self.hash = f"sha256:{hashlib.sha256(self.text.encode()).hexdigest()}"


class Report:
    """The rows of what was measured."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, float]] = []
        self.failed = False
        self.started = self.last = time.monotonic()

    def row(self, step: str, measured: str, limit: str, good: bool = True) -> None:
        now = time.monotonic()
        mark = "" if good else " FAILED"
        self.rows.append((step, measured + mark, limit, now - self.last))
        print(f"{step}: {measured}{mark} (limit: {limit}), {now - self.last:.1f} s", flush=True)
        self.last, self.failed = now, self.failed or not good

    def table(self) -> str:
        header = ("step", "measured", "limit", "seconds")
        rows = [header, *((step, measured, limit, f"{seconds:.1f}") for step, measured, limit, seconds in self.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


class Installation:
    # The seconds that requests have after LISTEN_GRACE. The pod of agentk has 5 s more. Each replacement takes that long. It is longer than the
    # time between the deletions of two pods, so that the other deletion does not explain an exec that ends at once.
    request_grace = 8

    def __init__(self, cluster: Cluster, directory: Path, report: Report, charts: Path = CHARTS, prefix: str = "") -> None:
        """Takes the charts from a directory, and images whose repositories begin with a prefix."""
        self.cluster, self.directory, self.charts, self.prefix = cluster, directory, charts, prefix
        self.report = report
        self.network: Network | None = None

    def row(self, step: str, measured: str, limit: str, good: bool = True) -> None:
        self.report.row(step, measured, limit, good)

    def prepare(self) -> None:
        cluster = self.cluster
        cluster.create_namespaces()
        eventually("a service account", 30, lambda: cluster.kubectl("get", "serviceaccount", "default", f"--namespace={cluster.work}"))
        container = {"name": "web", "image": "busybox:1.35", "imagePullPolicy": "Never", "command": ["sleep", "infinity"]}
        cluster.apply(cluster.work, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
                                     "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}})

        def address() -> str:
            return cluster.objects("pods", f"--namespace={cluster.work}")[0]["status"].get("podIP", "")

        eventually("the address of a pod", 60, address)
        self.network = Network(cluster, bridge_address(address()), self.directory)
        self.network.start()
        self.authority = Authority(self.directory, self.network.address)
        self.agent_tokens, self.caller_tokens = [Token("agent")], [Token("caller")]
        self.caller = Caller(self.network.address, self.network.callers_port, self.authority.file, AGENT, self.caller_tokens[0].text)
        self.write_identity()
        cluster.secret(cluster.kas, "kas-tls", **self.authority.certificate())
        cluster.secret(cluster.agentk, "agentk-token", token=self.agent_tokens[0].text)

    def write_identity(self) -> None:
        def hashes(tokens: list[Token]) -> list[str]:
            return [token.hash for token in tokens]

        identity = {"agents": [{"id": 1, "name": AGENT, "tokens": hashes(self.agent_tokens)}],
                    "callers": [{"name": "acceptance", "tokens": hashes(self.caller_tokens), "agents": ["*"], "services": ["*"]}]}
        self.cluster.secret(self.cluster.kas, "kas-identity", identity_yaml=json.dumps(identity))

    def kas_values(self, tag: str, **more: object) -> str:
        return json.dumps({
            "image": {"repository": f"{self.prefix}kas", "tag": tag, "pullPolicy": "Never"},
            "identity": {"existingSecret": "kas-identity"},
            "tls": {"existingSecret": "kas-tls"},
            "redis": {"server": {"address": f"{self.network.address}:{self.network.redis_port}"}},
            "shutdown": {"listenGracePeriod": f"{LISTEN_GRACE}s", "shutdownGracePeriod": f"{self.request_grace}s"},
            "metrics": {name: {"enabled": True} for name in ("dashboards", *self.monitoring)},
            "minReadySeconds": 3,
            **more,
        })

    def agentk_values(self, tag: str, **more: object) -> str:
        address = self.network.address
        return json.dumps({
            "image": {"repository": f"{self.prefix}agentk", "tag": tag, "pullPolicy": "Never"},
            "config": {"kasAddress": f"wss://{address}:{self.network.agents_port}", "kasCaCert": self.authority.file.read_text(),
                       "secretName": "agentk-token"},
            "rbac": {"rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}]},
            "terminationGracePeriodSeconds": self.request_grace + 5,
            "hostAliases": [{"ip": address, "hostnames": ["kubernetes.default.svc"]}],
            "extraEnv": [{"name": name, "value": value} for name, value in self.api_server.items()],
            **more,
        })

    @property
    def api_server(self) -> dict[str, str]:
        """The variables of a pod that reaches the API server on the address of the bridge."""
        return {"KUBERNETES_SERVICE_HOST": "kubernetes.default.svc", "KUBERNETES_SERVICE_PORT": str(self.network.api_port)}

    @functools.cached_property
    def monitoring(self) -> list[str]:
        """The kinds of the Prometheus operator that the cluster has."""
        found = self.cluster.kubectl("api-resources", "--api-group=monitoring.coreos.com", "--output=name")
        return [kind for kind in MONITORING if f"{kind.lower()}s." in found]

    def chart(self, command: str, name: str, values: str, *flags: str) -> None:
        namespace = getattr(self.cluster, name)
        self.cluster.helm(command, namespace, name, str(self.charts / name), "--values=-", *flags, text=values)

    @contextlib.contextmanager
    def load(self, step: str) -> Iterator[Requests]:
        """Sends requests meanwhile. Each that fails is a failure of the step."""
        requests, start = Requests(self.caller, RATE), time.monotonic()
        try:
            yield requests
        finally:
            requests.stop()
            rate = requests.sent / (time.monotonic() - start)
            for failure in requests.failures[:5]:
                print(f"  {failure}")
            measured = f"{len(requests.failures)} of {requests.sent} requests failed, {rate:.0f} of {RATE}/s, slowest {requests.slowest:.1f} s"
            self.row(step, measured, "0 failed", not requests.failures)

    @contextlib.contextmanager
    def streams(self) -> Iterator[tuple[list[Exec], Watches]]:
        """Opens execs and watches, and closes them at the end."""
        kubeconfig = self.caller.kubeconfig(self.directory / "kubeconfig")
        watches = Watches(self.caller, self.cluster.work, WATCHES)
        execs: list[Exec] = []
        try:
            execs.extend(Exec(kubeconfig, self.cluster.work, "web") for _ in range(EXECS))
            for session in execs:
                if not session.first.wait(20):
                    raise AcceptanceError("kubectl exec prints nothing")
            yield execs, watches
        finally:
            watches.stop()
            for session in execs:
                session.stop()

    def see_last_event(self, watches: Watches) -> None:
        name = f"last-{time.time_ns()}"
        self.cluster.kubectl("create", "configmap", name, f"--namespace={self.cluster.work}")
        eventually("each watch has the last event", 20, lambda: all(name in watch.seen for watch in watches.watches))

    # Steps

    def install(self, kas: str, agentk: str, pods: int = 2) -> None:
        """Installs both charts with these values, and waits for so many pods of kas and for a response through them."""
        cluster = self.cluster
        self.chart("install", "kas", kas)
        seconds = eventually(f"{pods} ready pods of kas", 60, lambda: len(cluster.ready(cluster.kas)) == pods)
        self.row("helm install kas", f"{pods} ready pods after {seconds:.0f} s", "60 s")
        start = time.monotonic()
        self.chart("install", "agentk", agentk)
        kubeconfig = self.caller.kubeconfig(self.directory / "kubeconfig")
        command = (f"--kubeconfig={kubeconfig}", f"--namespace={cluster.work}", "get", "pods", "--output=name")
        eventually("kubectl get pods through kas", 30, lambda: "pod/web" in cluster.kubectl(*command))
        self.row("helm install agentk", f"kubectl get pods through kas after {time.monotonic() - start:.0f} s", "30 s")
        for name in ("kas", "agentk"):
            cluster.helm("test", getattr(cluster, name), name, "--timeout=60s")
        self.row("helm test", "both succeed", "both succeed")

    def replace(self, step: str, name: str, change: Callable[[], None]) -> None:
        """Replaces all pods of a chart under requests, watches and execs."""
        namespace = getattr(self.cluster, name)
        old = self.cluster.ready(namespace)
        grace = self.request_grace + (LISTEN_GRACE if name == "kas" else 0)
        deletions = Deletions(namespace)
        try:
            with self.streams() as (execs, watches), self.load(step):
                change()
                eventually("all pods are replaced", 60, lambda: len(ready := self.cluster.ready(namespace)) >= 2 and not ready & old)
                self.cluster.kubectl("create", "configmap", f"after-{time.time_ns()}", f"--namespace={self.cluster.work}")
                eventually("the execs have ended", grace + 20, lambda: all(session.ended() for session in execs))
                self.see_last_event(watches)
        finally:
            deletions.stop()
        for failure in watches.failures()[:5]:
            print(f"  a watch: {failure}")
        most, failures = max(watches.reconnects()), len(watches.failures())
        self.row(f"{step}: watches", f"{most} reconnects at most, {failures} failed", f"{len(old)}, 0 failed", most <= len(old) and not failures)
        # The pod whose deletion explains the end best.
        after = sorted(min((session.end - moment for moment in deletions.times), key=lambda seconds: abs(seconds - grace)) for session in execs)
        self.row(f"{step}: execs", f"end {after[0]:.1f} to {after[-1]:.1f} s after the pod stops", f"{grace} s, up to 4 s later",
                 grace <= after[0] and after[-1] <= grace + 4)

    def remove(self) -> None:
        """Removes the releases, their namespaces and the services, also after a failure."""
        self.cluster.remove()
        if self.network:
            self.network.stop()


def find_cluster(name: str) -> Cluster:
    """Returns the cluster of KUBECONFIG. If something is missing, the program ends: it is skipped, or fails with E2E_REQUIRE=1."""
    def skip(missing: str) -> None:
        print(f"SKIPPED {name}: {missing} is missing", file=sys.stderr)
        sys.exit(int(os.environ.get("E2E_REQUIRE") == "1"))

    helm = shutil.which("helm") or shutil.which(str(ROOT / "target/clients/bin/helm"))
    if missing := missing_programs() + ([] if helm else ["helm"]) + ([] if os.environ.get("KUBECONFIG") else ["KUBECONFIG"]):
        skip(missing[0])
    cluster = Cluster(helm, f"{name}-{secrets.token_hex(3)}")
    if not Path(cluster.ctr[2]).exists():
        skip(f"the socket of containerd ({cluster.ctr[2]})")
    return cluster
