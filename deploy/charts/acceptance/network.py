"""The services beside the cluster, on the address of its bridge: Redis, and nginx before the API server and the pods of kas.

A cluster for tests may have no kube-proxy. nginx then does its work: it follows the endpoints of the Service kas.
"""

import json
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

from cluster import Cluster, eventually, run

# Debian's module. Other builds of nginx have it inside.
STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listener:
        return listener.getsockname()[1]


def connects(address: str, port: int) -> bool:
    with socket.create_connection((address, port), timeout=1):
        return True


class Network:
    def __init__(self, cluster: Cluster, address: str, directory: Path) -> None:
        self.cluster, self.address, self.directory = cluster, address, directory
        self.redis_port, self.api_port, self.agents_port, self.callers_port = (free_port(address) for _ in range(4))
        view = json.loads(cluster.kubectl("config", "view", "--minify", "--output=json"))
        self.api_server = view["clusters"][0]["cluster"]["server"].removeprefix("https://")
        self.endpoints: list[str] = []
        self.stopped = threading.Event()
        self.processes: list[subprocess.Popen] = []
        self.watch: subprocess.Popen | None = None
        self.follower = threading.Thread(target=self.follow, daemon=True)

    def start(self) -> None:
        self.spawn("redis-server", "--bind", self.address, "--port", str(self.redis_port), "--save", "", "--protected-mode", "no",
                   "--dir", str(self.directory))
        self.write()
        self.nginx = self.spawn("nginx", "-e", str(self.directory / "nginx.log"), "-c", str(self.directory / "nginx.conf"))
        for port in (self.redis_port, self.api_port):
            eventually(f"a listener on {self.address}:{port}", 10, lambda port=port: connects(self.address, port))
        self.follower.start()

    def spawn(self, *command: str) -> subprocess.Popen:
        log = (self.directory / f"{command[0]}.log").open("a")
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def write(self) -> None:
        def upstream(name: str, port: int) -> str:
            # A server that refuses connections is not avoided: the endpoints say which servers there are.
            servers = [f"server {address}:{port} max_fails=0;" for address in self.endpoints] or ["server 127.0.0.1:9 down;"]
            return f"upstream {name} {{ least_conn; {' '.join(servers)} }}"

        def server(port: int, target: str) -> str:
            return f"server {{ listen {self.address}:{port}; proxy_pass {target}; }}"

        module = f"load_module {STREAM_MODULE};" if STREAM_MODULE.exists() else ""
        lines = [module, "daemon off;", f"pid {self.directory}/nginx.pid;", "worker_processes 1;", "events { worker_connections 10000; }",
                 "stream {", "proxy_timeout 1h; proxy_connect_timeout 1s;", upstream("agents", 8150), upstream("callers", 8154),
                 server(self.api_port, self.api_server), server(self.agents_port, "agents"), server(self.callers_port, "callers"), "}"]
        (self.directory / "nginx.conf").write_text("\n".join(lines) + "\n")

    def follow(self) -> None:
        """Gives nginx the ready endpoints of kas whenever they change. Old workers of nginx keep their connections."""
        command = ("kubectl", "get", "endpoints", f"--namespace={self.cluster.kas}", "--field-selector=metadata.name=kas", "--watch",
                   "--output=jsonpath={.subsets[*].addresses[*].ip}{'\\n'}")
        while not self.stopped.is_set():
            self.watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for line in self.watch.stdout:
                addresses = sorted(line.split())
                if addresses and addresses != self.endpoints:
                    self.endpoints = addresses
                    self.write()
                    self.nginx.send_signal(signal.SIGHUP)
            self.stopped.wait(0.2)

    def stop(self) -> None:
        self.stopped.set()
        if self.watch:
            self.watch.terminate()
            self.follower.join()
        for process in self.processes:
            process.terminate()
            process.wait()


class Authority:
    """A certificate authority, and the certificates of kas."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory, self.address, self.count = directory, address, 0
        self.file = directory / "ca.crt"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self.new_key = key
        run("openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=acceptance", "-keyout", str(directory / "ca.key"), "-out", str(self.file))

    def certificate(self) -> dict[str, str]:
        """Returns a new certificate and its key, as in a secret."""
        self.count += 1
        base = self.directory / f"kas-{self.count}"
        run("openssl", "req", *self.new_key, "-subj", "/CN=kas", "-keyout", f"{base}.key", "-out", f"{base}.csr")
        extensions = base.with_suffix(".ext")
        extensions.write_text(f"subjectAltName=IP:{self.address}\nbasicConstraints=critical,CA:FALSE\n")
        run("openssl", "x509", "-req", "-in", f"{base}.csr", "-CA", str(self.file), "-CAkey", str(self.directory / "ca.key"), "-days", "2",
            "-set_serial", str(self.count), "-extfile", str(extensions), "-out", f"{base}.crt")
        return {"tls_crt": base.with_suffix(".crt").read_text(), "tls_key": base.with_suffix(".key").read_text()}


def bridge_address(pod_address: str) -> str:
    """Returns the address of this machine in the network of the pods."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((pod_address, 9))
        return probe.getsockname()[0]


def missing_programs() -> list[str]:
    programs = ("kubectl", "nginx", "redis-server", "openssl", "ctr", "objcopy")
    return [program for program in programs if not shutil.which(program)]
