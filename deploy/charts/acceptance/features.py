"""All optional features of the chart agentk in one release: their pods start, and `agentk check` in a pod finds each right that they need.

The webhook of admission is not exercised: the API server of a cluster for tests may not reach the pod, so the webhook is deleted after each
upgrade. Until then, writes of agentk and of the users that it impersonates may fail; Kubernetes before 1.28 goes on without an answer.
"""

import re

from cluster import ALL_LABEL, AcceptanceError, Cluster, complete

# A secret with the certificates of the webhooks.
TLS = "agentk-tls"
# The steps of `agentk check` that depend on the roles of the chart.
STEPS = {"prometheus: discovery", "gitops: rights", "notify: rights", "graph: rights", "alerts: rights", "alerts: Events",
         "policy: namespaceSelector"}
# A line of `agentk check`: the subject and the step, the result, and the rest.
STEP = re.compile(r"(.+?: .*?) +(ok|warning|FAILED) ")
# The steps that fail with all rights, each with a part of its error: there is no Prometheus and no relay.
FAILURES = {"prometheus: discovery": "there is no Prometheus in", "alerts: Hubble Relay": "--hubble-address"}
# The second rule is about no namespace of this cluster, and needs the labels of all.
POLICY = {"rules": [
    {"name": "all", "action": "allow", "services": ["*"]},
    {"name": "closed", "action": "deny", "services": ["kubernetes"], "namespaceSelector": {"matchLabels": {"acceptance": "closed"}}},
]}


class Features:
    def __init__(self, cluster: Cluster, authority: str, api_server: dict[str, str]) -> None:
        self.cluster, self.authority, self.api_server = cluster, authority, api_server

    def values(self, roles: bool = True) -> dict:
        """Returns the values of all features. No definition of a kind is among them, because `helm uninstall` keeps those."""
        return {
            "rbac": {"create": roles, "namespaceLabels": True},
            "gitops": {"enabled": True},
            "graph": {"enabled": True},
            "notify": {"enabled": True, "flux": {"enabled": True, "receivers": True}, "argocd": {"enabled": True}},
            # The check looks at the rights before it finds no relay at this port.
            "alerts": {"hubbleAddress": "http://127.0.0.1:9", "policyEngines": True},
            "prometheus": {"discovery": self.cluster.agentk},
            "provision": {"enabled": True, "bind": ["edit"], "deleteNamespaces": True},
            "policy": POLICY,
            "admission": {"enabled": True, "replicas": 1, "tlsSecret": TLS, "caCert": self.authority},
            "audit": {"enabled": True, "tlsSecret": TLS},
        }

    def leave_out_webhook(self) -> None:
        """Removes what makes the API server ask the pod of admission: a cluster for tests may have no network to Services."""
        self.cluster.kubectl("delete", "validatingwebhookconfiguration", f"{self.cluster.agentk}.agentk")

    def wait_for_pods(self) -> None:
        """Waits until the pods of agentk, of admission and of the audit log are ready."""
        namespace = f"--namespace={self.cluster.agentk}"
        # The pod of admission reads the labels of namespaces, and extraEnv is not for it.
        variables = (f"{name}={value}" for name, value in self.api_server.items())
        self.cluster.kubectl("set", "env", "deployment/agentk-admission", namespace, *variables)
        for name in ("agentk", "agentk-admission", "agentk-audit"):
            self.cluster.kubectl("rollout", "status", f"deployment/{name}", namespace, "--timeout=60s")

    def pods(self) -> set[str]:
        """Returns the names of the pods of agentk, of admission and of the audit log."""
        return set(self.cluster.pods(self.cluster.agentk, ALL_LABEL))

    def lacking(self) -> set[str]:
        """Returns the steps of `agentk check` in a pod that lack a right. Another step may fail only if it is one of `FAILURES`."""
        pod = next(iter(self.cluster.pods(self.cluster.agentk).values()))
        arguments = pod["spec"]["containers"][0]["args"]
        command = ["kubectl", "exec", pod["metadata"]["name"], f"--namespace={self.cluster.agentk}", "--", "agentk", "check", *arguments]
        # No relay and no Prometheus answer, so that the check fails.
        result = complete(*command, timeout=60)
        lines = {found[1].rstrip(): (found[2], line) for line in result.stdout.splitlines() if (found := STEP.match(line))}
        if absent := STEPS - lines.keys():
            raise AcceptanceError(f"agentk check has no line of {', '.join(sorted(absent))}: {result.stdout}{result.stderr}")
        lacking = {name for name, (_, line) in lines.items()
                   if not name.startswith("cluster: ") and ("may not" in line or "forbidden" in line.lower())}
        failed = [line for name, (outcome, line) in lines.items()
                  if outcome == "FAILED" and name not in lacking and not (name in FAILURES and FAILURES[name] in line)]
        if failed:
            raise AcceptanceError(f"agentk check fails for another reason than a right: {'; '.join(failed)}")
        return lacking
