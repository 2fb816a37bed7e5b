"""Tests the rights of each optional feature of the chart agentk in the cluster of KUBECONFIG.

agentk runs `agentk check` as the service account of the chart, with the environment of its container. A proxy before the API server
records for which rights it asks.
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
from typing import Callable
from urllib.parse import urlsplit

import yaml

# The values of each feature, by the name that `agentk check` gives it. `NAMESPACE` is that of the release. Rights that depend on the
# configuration of the agent, as those of `notify.flux` and of `provision`, are not known to the check.
FEATURES = {
    "gitops": {"gitops": {"enabled": True}},
    "graph": {"graph": {"enabled": True}},
    "notify": {"notify": {"enabled": True}},
    "alerts": {"alerts": {"policyEngines": True, "hubbleAddress": "http://127.0.0.1:1"}},
    "prometheus": {"prometheus": {"discovery": "NAMESPACE"}},
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LISTS = re.compile(r"/api/v1/namespaces/[^/]+/(\w+)(?:\?|$)")
# The API server learns of roles some time after it has stored them.
PATIENCE = 10


class Recorder(ThreadingHTTPServer):
    """Forwards requests to the API server with the token of a service account, and records the rights that they ask for or use."""

    def __init__(self, server: str, authority: bytes, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Forward)
        self.target, self.token = urlsplit(server), token
        self.tls = ssl.create_default_context(cadata=authority.decode() or None)
        self.asked: set[tuple[str, str, str]] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Forward(BaseHTTPRequestHandler):
    server: Recorder

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == REVIEWS:
            attributes = json.loads(body)["spec"]["resourceAttributes"]
            self.server.asked.add((attributes["group"], attributes["resource"], attributes["verb"]))
        elif listed := LISTS.match(self.path):
            self.server.asked.add(("", listed[1], "list"))
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

    def __init__(self, kubectl: str, agentk: str, template: Callable[..., subprocess.CompletedProcess[str]], feature: str) -> None:
        self.kubectl_program, self.agentk, self.template, self.feature = kubectl, agentk, template, feature
        self.namespace = f"rights-{feature}-{secrets.token_hex(3)}"

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        result = subprocess.run([self.kubectl_program, *arguments], input=text, text=True, capture_output=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {result.stderr}")
        return result.stdout

    def render(self, values: dict) -> list[dict]:
        common = {"config": {"kasAddress": "ws://127.0.0.1:1", "token": "token"}, "rbac": {"useExistingRole": ""}}
        text = json.dumps(common | values).replace("NAMESPACE", self.namespace)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            result = self.template(Path(file.name), "--namespace", self.namespace)
        if result.returncode != 0:
            raise RuntimeError(result.stderr)
        return [item for item in yaml.safe_load_all(result.stdout) if item]

    def failures(self, directory: Path) -> list[str]:
        values = FEATURES[self.feature]
        objects, base = self.render(values), self.render({})
        names = {(item["kind"], item["metadata"]["name"]) for item in base}
        rbac = [item for item in objects if item["apiVersion"].startswith("rbac.") or item["kind"] == "ServiceAccount"]
        of_feature = [item for item in rbac if (item["kind"], item["metadata"]["name"]) not in names]
        self.kubectl("create", "namespace", self.namespace)
        try:
            self.apply("apply", rbac)
            recorder = self.recorder(directory)
            found = self.check(objects, directory, lambda lacks: not lacks)
            failures = [f"the roles of the chart do not suffice: {line}" for line in found]
            granted = rights(rbac) - rights([item for item in base if item["apiVersion"].startswith("rbac.")])
            failures += [f"the chart grants {verb} {resource}.{group}, for which agentk check does not ask"
                         for group, resource, verb in sorted(granted) if not is_asked(recorder.asked, group, resource, verb)]
            self.apply("delete", of_feature)
            if not self.check(objects, directory, bool):
                failures.append("agentk check misses no role of the feature after its deletion")
            recorder.shutdown()
            return failures
        finally:
            self.apply("delete", [item for item in rbac if "namespace" not in item["metadata"]], "--ignore-not-found")
            self.kubectl("delete", "namespace", self.namespace, "--wait=false")

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

    def check(self, objects: list[dict], directory: Path, is_expected: Callable[[list[str]], bool]) -> list[str]:
        """Returns the lines about rights that the feature lacks, once they are as expected or the patience is at its end."""
        deployment = next(item for item in objects if item["kind"] == "Deployment")
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


def rights(objects: list[dict]) -> set[tuple[str, str, str]]:
    """Returns the group, the resource and the verb of each right of roles."""
    return {(group, resource, verb) for item in objects for rule in item.get("rules", []) for group in rule["apiGroups"]
            for resource in rule["resources"] for verb in rule["verbs"]}


def is_asked(asked: set[tuple[str, str, str]], group: str, resource: str, verb: str) -> bool:
    """Returns whether agentk has asked for a right, or for one of the rights that `*` stands for."""
    return any(group == of and resource in ("*", what) and verb == how for of, what, how in asked)


def failures(kubectl: str, agentk: str, template: Callable[..., subprocess.CompletedProcess[str]]) -> list[str]:
    """Returns for each feature what is wrong with its roles."""
    def of_feature(feature: str) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            try:
                found = Account(kubectl, agentk, template, feature).failures(Path(directory))
            except RuntimeError as error:
                found = [str(error)]
        return [f"{feature}: {failure}" for failure in found]

    with ThreadPoolExecutor(len(FEATURES)) as pool:
        return [failure for found in pool.map(of_feature, FEATURES) for failure in found]
