"""The definitions of the custom resources that the charts can render, from the Go modules of their projects.

As a program, this prints them, for `kubectl apply --server-side --filename=-`: `make charts` and `make acceptance` use the custom
resources that the cluster has. The Kubernetes 1.20 of CI cannot have them: its JSON library does not work with the Go that built it, refuses
the defaults in definitions, and crashes on each custom resource.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

PROMETHEUS = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CERT_MANAGER = "github.com/cert-manager/cert-manager@v1.21.2"
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.6.0"
ENVOY_GATEWAY = "github.com/envoyproxy/gateway@v1.9.1"
# The file of each definition in its module.
DEFINITIONS = [
    (PROMETHEUS, "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"),
    (PROMETHEUS, "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"),
    (PROMETHEUS, "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"),
    (CERT_MANAGER, "deploy/crds/cert-manager.io_certificates.yaml"),
    (GATEWAY_API, "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    (ENVOY_GATEWAY, "charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml"),
]
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


class DefinitionError(Exception):
    """Says which module cannot be downloaded."""


def definitions(go: str) -> Iterator[str]:
    """Returns the text of each definition."""
    for module, file in DEFINITIONS:
        result = subprocess.run([go, "mod", "download", "-json", module], text=True, capture_output=True, check=False)
        if result.returncode != 0:
            raise DefinitionError(f"go mod download {module}: {(result.stdout + result.stderr).strip()[:500]}")
        yield Path(json.loads(result.stdout)["Dir"], file).read_text()


def schemas(go: str) -> dict[tuple[str, str], dict]:
    """Returns the schema of each version and kind."""
    found = {}
    for text in definitions(go):
        spec = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        for version in spec["versions"]:
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    return found


def violations(value: object, schema: dict, path: str) -> list[str]:
    """Says where a value differs from its schema. Rules in CEL are not evaluated."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, int | str) else [f"{path} is neither a number nor a text"]
    expected = schema.get("type")
    if expected and (not isinstance(value, TYPES[expected]) or (isinstance(value, bool) and expected != "boolean")):
        return [f"{path} is not of the type {expected}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path} is none of {schema['enum']}")
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append(f"{path} does not match {schema['pattern']}")
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            found.append(f"{path} is too short or too long")
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{path} is out of bounds")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{path} has too few or too many items")
        found += [violation for index, item in enumerate(value) for violation in violations(item, schema["items"], f"{path}[{index}]")]
    # `metadata` has no schema in a definition.
    if isinstance(value, dict) and ("properties" in schema or "additionalProperties" in schema):
        found += [f"{path}.{key} is missing" for key in schema.get("required", []) if key not in value]
        for key, child in value.items():
            known = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(known, dict):
                found += violations(child, known, f"{path}.{key}")
            elif not known and not schema.get("x-kubernetes-preserve-unknown-fields"):
                found.append(f"{path}.{key} is unknown")
    return found


def main() -> int:
    if not (go := shutil.which("go")):
        print("go, which downloads the definitions, is missing", file=sys.stderr)
        return 1
    try:
        print("\n---\n".join(definitions(go)))
    except DefinitionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
