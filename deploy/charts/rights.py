"""Tests the rights of each optional feature of the chart agentk.

In the cluster of KUBECONFIG, agentk runs `agentk check` as the service account of the chart, with the environment of its container. A proxy
before the API server records for which rights it asks. The rights that the check does not know are compared with a list.
"""

import http.client
import json
import os
import re
import secrets
import ssl
import subprocess
import tempfile
import threading
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Callable, Iterable
from urllib.parse import urlsplit

import yaml

# A namespace ("" stands for all, and for none), a group, a resource (with its subresource) and a verb.
Right = tuple[str, str, str, str]
# Renders the chart.
Template = Callable[..., subprocess.CompletedProcess[str]]

SCOPE = {"scope": "namespaces", "namespaces": ["NAMESPACE"], "useExistingRole": ""}
ALERTS = {"policyEngines": True, "hubbleAddress": "http://127.0.0.1:1"}
# The values of each case. `NAMESPACE` is that of the release. The first word of a case is the name that `agentk check` gives the feature.
FEATURES = {
    "gitops": {"gitops": {"enabled": True}},
    "graph": {"graph": {"enabled": True}},
    "graph scoped": {"graph": {"enabled": True}, "rbac": SCOPE},
    "notify": {"notify": {"enabled": True}},
    "alerts": {"alerts": ALERTS},
    "alerts scoped": {"alerts": ALERTS, "rbac": SCOPE},
    "prometheus": {"prometheus": {"discovery": "NAMESPACE"}},
}
# The groups whose resources the chart may grant as `*`, because the graph shows most of them. The check asks for some of each.
WHOLE_GROUPS = {"apps", "batch", "networking.k8s.io", "gateway.networking.k8s.io", "discovery.k8s.io", "autoscaling", "policy"}
# The rules that `agentk check` tests one by one, of each feature: it runs once for each of them.
MOST_RULES = 3

POLICY = {"rules": [{"name": "all", "action": "allow", "services": ["*"]}]}
NOTIFY = {("NAMESPACE", "", "configmaps", "get create patch"), ("NAMESPACE", "coordination.k8s.io", "leases", "get create update")}
PROVISION = {
    ("", "", "namespaces", "get list create patch delete"),
    ("", "", "serviceaccounts", "get list create patch delete"),
    ("", "rbac.authorization.k8s.io", "rolebindings", "get list create patch delete"),
    ("", "rbac.authorization.k8s.io", "clusterroles[edit]", "bind"),
}
# The values of features whose rights the check does not know, because they depend on the configuration of the agent, with these rights.
UNCHECKED = {
    "nothing": ({}, set()),
    "scope": ({"rbac": SCOPE}, {("NAMESPACE", "", "namespaces[NAMESPACE]", "get")}),
    "audit": ({"audit": {"enabled": True, "tlsSecret": "tls"}}, set()),
    "admission": ({"policy": POLICY, "admission": {"enabled": True, "tlsSecret": "tls", "caCert": "-----BEGIN CERTIFICATE-----"}}, set()),
    "listen": ({"config": {"token": "token"}, "listen": {"enabled": True, "tlsSecret": "tls", "keySecret": "key"}}, set()),
    "prometheus in all namespaces": ({"prometheus": {"discovery": "*"}}, {("", "", "services", "list")}),
    "provision": ({"policy": POLICY, "provision": {"enabled": True, "bind": ["edit"]}}, PROVISION),
    "provision that deletes": (
        {"policy": POLICY, "provision": {"enabled": True, "bind": ["edit"], "deleteNamespaces": True}}, PROVISION | {("", "*", "*", "list")}),
    "notify.repository": ({"notify": {"enabled": True, "repository": {"enabled": True}}}, NOTIFY | {
        ("", "kas.dev", "repositories", "get create patch"), ("", "kas.dev", "repositories/status", "patch")}),
    "notify.flux": ({"notify": {"enabled": True, "flux": {"enabled": True}}}, NOTIFY | {
        ("", "source.toolkit.fluxcd.io", "gitrepositories", "list patch"), ("", "source.toolkit.fluxcd.io", "ocirepositories", "list patch")}),
    "notify.flux.receivers": ({"notify": {"enabled": True, "flux": {"enabled": True, "receivers": True}}}, NOTIFY | {
        ("", "source.toolkit.fluxcd.io", "gitrepositories", "list patch"), ("", "source.toolkit.fluxcd.io", "ocirepositories", "list patch"),
        ("", "notification.toolkit.fluxcd.io", "receivers", "get create"), ("", "", "secrets", "create")}),
    "notify.argocd": ({"notify": {"enabled": True, "argocd": {"enabled": True}}}, NOTIFY | {("", "argoproj.io", "applications", "list patch")}),
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LISTS = re.compile(r"/api/v1/(?:namespaces/([^/]+)/)?(\w+)(?:\?|$)")
# The API server learns of roles some time after it has stored them, and a check may take seconds on a busy machine.
PATIENCE = 30


class Recorder(ThreadingHTTPServer):
    """Forwards requests to the API server with the token of a service account, and records the rights that they ask for or use."""

    def __init__(self, server: str, authority: bytes, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Forward)
        self.target, self.token = urlsplit(server), token
        self.tls = ssl.create_default_context(cadata=authority.decode() or None)
        self.asked: set[Right] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Forward(BaseHTTPRequestHandler):
    server: Recorder

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == REVIEWS:
            asked = json.loads(body)["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            self.server.asked.add((asked.get("namespace", ""), asked["group"], resource, asked["verb"]))
        elif listed := LISTS.match(self.path):
            self.server.asked.add((listed[1] or "", "", listed[2], "list"))
        target = self.server.target
        upstream = http.client.HTTPSConnection(target.hostname, target.port, context=self.server.tls, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        headers["Authorization"] = f"Bearer {self.server.token}"
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        text = response.read()
        self.send_response(response.status)
        self.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        upstream.close()

    do_GET = do_POST = forward

    def log_message(self, *_: object) -> None:
        pass


class Account:
    """The service account of a release in a namespace of its own."""

    def __init__(self, kubectl: str, agentk: str, template: Template, case: str) -> None:
        self.kubectl_program, self.agentk, self.template, self.case = kubectl, agentk, template, case
        self.feature = case.split()[0]
        self.namespace = f"rights-{self.feature}-{secrets.token_hex(3)}"
        self.objects = render(template, FEATURES[case], self.namespace)
        self.rbac = [item for item in self.objects if item["apiVersion"].startswith("rbac.") or item["kind"] == "ServiceAccount"]

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        result = subprocess.run([self.kubectl_program, *arguments], input=text, text=True, capture_output=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {result.stderr}")
        return result.stdout

    def failures(self, directory: Path) -> list[str]:
        self.kubectl("create", "namespace", self.namespace)
        return attempt(lambda: self.test(directory)) + attempt(self.remove)

    def remove(self) -> list[str]:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        of_cluster = [item for item in self.rbac if "namespace" not in item["metadata"]]
        self.apply("delete", [*of_cluster, namespace], "--ignore-not-found", "--wait=false")
        return []

    def test(self, directory: Path) -> list[str]:
        base = render(self.template, {key: value for key, value in FEATURES[self.case].items() if key == "rbac"}, self.namespace)
        self.apply("apply", self.rbac)
        recorder = self.recorder(directory)
        try:
            failures = [f"the roles of the chart do not suffice: {line}" for line in self.check(directory, lambda lacks: not lacks)]
            failures += [f"the chart grants {describe(right)}, for which agentk check does not ask"
                         for right in sorted(rights(self.rbac) - rights(base)) if not is_asked(recorder.asked, right)]
            names = {(item["kind"], item["metadata"]["name"]) for item in base}
            roles = [item for item in self.rbac if item.get("rules") and (item["kind"], item["metadata"]["name"]) not in names]
            rules = [(role, rule) for role in roles for rule in role["rules"]]
            for role, rule in rules[::-(-len(rules) // MOST_RULES)]:
                failures += self.without(directory, role, rule)
            return failures
        finally:
            recorder.shutdown()

    def without(self, directory: Path, role: dict, rule: dict) -> list[str]:
        """Returns the resources of a rule that `agentk check` does not name while the role is without the rule."""
        names = [f"{resource}.{group}".removeprefix("*").removesuffix(".") for group in rule["apiGroups"] for resource in rule["resources"]]

        def unnamed(lacks: list[str]) -> list[str]:
            return [name for name in names if not any(name in line for line in lacks)]

        self.apply("apply", [role | {"rules": [other for other in role["rules"] if other is not rule]}])
        lacks = self.check(directory, lambda lacks: not unnamed(lacks))
        self.apply("apply", [role])
        return [f"agentk check does not miss {name} without its rule" for name in unnamed(lacks)]

    def apply(self, verb: str, objects: list[dict], *flags: str) -> None:
        if objects:
            self.kubectl(verb, "--filename=-", *flags, text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def recorder(self, directory: Path) -> Recorder:
        """Starts the recorder, and writes the kubeconfig of the service account."""
        cluster = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json"))["clusters"][0]["cluster"]
        account = json.loads(self.kubectl("get", "serviceaccounts", f"--namespace={self.namespace}", "--selector=app.kubernetes.io/name=agentk",
                                          "--output=json"))["items"][0]["metadata"]["name"]
        token = self.kubectl("create", "token", account, f"--namespace={self.namespace}").strip()
        recorder = Recorder(cluster["server"], b64decode(cluster.get("certificate-authority-data", "")), token)
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{recorder.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (directory / "kubeconfig").write_text(json.dumps(config))
        (directory / "token").write_text("token\n")
        return recorder

    def check(self, directory: Path, is_expected: Callable[[list[str]], bool]) -> list[str]:
        """Returns the lines about rights that the feature lacks, once they are as expected or the patience is at its end."""
        deployment = next(item for item in self.objects if item["kind"] == "Deployment")
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        variables = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        variables |= {"AGENTK_TOKEN_FILE": str(directory / "token"), "POD_NAMESPACE": self.namespace}
        environment = {**os.environ, **variables, "KUBECONFIG": str(directory / "kubeconfig")}
        command = [self.agentk, "check", *container["args"], "--kubeconfig", str(directory / "kubeconfig")]
        end = time.monotonic() + PATIENCE
        while True:
            result = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
            if "cluster: API server" not in result.stdout:
                raise RuntimeError(f"agentk check: {result.stdout}{result.stderr}")
            lines = [line for line in result.stdout.splitlines() if line.startswith(f"{self.feature}: ")]
            if not lines:
                raise RuntimeError(f"agentk check has no line of {self.feature}: {result.stdout}")
            lacks = [line for line in lines if "may not" in line or "forbidden" in line]
            others = [line for line in result.stdout.splitlines() if "may not" in line and line not in lacks and not line.startswith("cluster: ")]
            if others:
                raise RuntimeError(f"another feature lacks rights: {others}")
            if is_expected(lacks) or time.monotonic() > end:
                return lacks
            time.sleep(0.2)


def render(template: Template, values: dict, namespace: str) -> list[dict]:
    common = {"config": {"kasAddress": "ws://127.0.0.1:1", "token": "token"}, "rbac": {"useExistingRole": ""}}
    text = json.dumps(common | values).replace("NAMESPACE", namespace)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        result = template(Path(file.name), "--namespace", namespace)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return [item for item in yaml.safe_load_all(result.stdout) if item]


def rights(objects: list[dict]) -> set[Right]:
    """Returns the rights that bindings give."""
    roles = {(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item["rules"]
             for item in objects if item["kind"] in ("Role", "ClusterRole")}
    found = set()
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        place = binding["metadata"].get("namespace", "")
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        rules = roles.get((kind, place if kind == "Role" else "", name))
        # The rules of a role of the cluster are not known.
        found |= {(place, "", f"{kind}/{name}", "bind")} if rules is None else {right for rule in rules for right in of_rule(place, rule)}
    return found


def of_rule(place: str, rule: dict) -> set[Right]:
    names = f"[{','.join(rule['resourceNames'])}]" if "resourceNames" in rule else ""
    resources = {(place, group, resource + names, verb) for group in rule.get("apiGroups", []) for resource in rule.get("resources", [])
                 for verb in rule["verbs"]}
    return resources | {(place, "", url, verb) for url in rule.get("nonResourceURLs", []) for verb in rule["verbs"]}


def is_asked(asked: set[Right], right: Right) -> bool:
    """Returns whether agentk has asked for a right, or for one of the rights that `*` stands for."""
    place, group, resource, verb = right
    if resource == "*" and group in WHOLE_GROUPS:
        return any((place, group, verb) == (of, by, how) for of, by, _, how in asked)
    return right in asked


def describe(right: Right) -> str:
    place, group, resource, verb = right
    return f"{verb} {resource}{'.' if group else ''}{group} in {place or 'all namespaces'}"


def attempt(action: Callable[[], list[str]]) -> list[str]:
    """Returns the failures that an action finds, or its own, so that what follows it takes place, and is reported, too."""
    try:
        return action()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def in_parallel(test: Callable[[str], list[str]], cases: Iterable[str]) -> list[str]:
    def named(case: str) -> list[str]:
        return [f"{case}: {failure}" for failure in attempt(lambda: test(case))]

    with ThreadPoolExecutor(8) as pool:
        return [failure for found in pool.map(named, cases) for failure in found]


def unchecked_failures(template: Template) -> list[str]:
    """Returns the rights in which the features that `agentk check` does not know differ from their list. No cluster is needed."""
    def of_case(name: str) -> list[str]:
        values, expected = UNCHECKED[name]
        listed = {(place, group, resource, verb) for place, group, resource, verbs in expected for verb in verbs.split()}
        found = {tuple(part.replace("rights-ns", "NAMESPACE") for part in right) for right in rights(render(template, values, "rights-ns"))}
        return [f"the chart grants {describe(right)}" for right in sorted(found - listed)] + [
            f"the chart does not grant {describe(right)}" for right in sorted(listed - found)]

    return in_parallel(of_case, UNCHECKED)


def failures(kubectl: str, agentk: str, template: Template) -> list[str]:
    """Returns for each feature that `agentk check` knows what is wrong with its roles."""
    def of_case(case: str) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            return Account(kubectl, agentk, template, case).failures(Path(directory))

    return in_parallel(of_case, FEATURES)
