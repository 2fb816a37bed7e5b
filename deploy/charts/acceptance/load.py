"""The callers of kas: requests at a constant rate, watches and execs, each of which records its failures."""

import http.client
import json
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster import AcceptanceError


@dataclass
class Caller:
    """An address of kas, and the credential for it."""

    host: str
    port: int
    authority: Path
    agent: str
    token: str
    check_host: bool = True

    def connect(self, timeout: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.check_hostname = self.check_host
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def certificate(self) -> int:
        """Returns the serial number of the certificate that the server shows."""
        connection = self.connect(10)
        try:
            connection.connect()
            return int(connection.sock.getpeercert()["serialNumber"], 16)
        finally:
            connection.close()

    def path(self, path: str) -> str:
        return f"/agents/{self.agent}/kubernetes{path}"

    def headers(self) -> dict[str, str]:
        # The API server of Kubernetes 1.20 fails on some requests of user agents that it takes for people.
        return {"Authorization": f"Bearer {self.token}", "User-Agent": "acceptance", "Accept": "application/json"}

    def get(self, path: str) -> tuple[int, bytes]:
        """Sends one request over a new connection."""
        connection = self.connect(10)
        try:
            connection.request("GET", self.path(path), headers=self.headers())
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def kubeconfig(self, file: Path) -> Path:
        cluster = {"server": f"https://{self.host}:{self.port}{self.path('')}", "certificate-authority": str(self.authority)}
        file.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "kas",
            "clusters": [{"name": "kas", "cluster": cluster}],
            "users": [{"name": "kas", "user": {"token": self.token}}],
            "contexts": [{"name": "kas", "context": {"cluster": "kas", "user": "kas"}}],
        }))
        return file


class Requests:
    """Short requests over kept connections. Like any client, it repeats a request whose kept connection was closed before."""

    def __init__(self, caller: Caller, rate: float, threads: int = 50) -> None:
        self.caller, self.pause = caller, threads / rate
        self.sent, self.slowest = 0, 0.0
        self.failures: list[str] = []
        self.failed_at: list[float] = []
        self.started = self.succeeded_at = time.time()
        # The longest time without a response of 200: its begin and its end.
        self.outage = (self.started, self.started)
        self.stopped, self.lock = threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.loop, args=(number / rate,), daemon=True) for number in range(threads)]
        for thread in self.threads:
            thread.start()

    def loop(self, delay: float) -> None:
        connection, due = None, time.monotonic() + delay
        while not self.stopped.wait(max(0.0, due - time.monotonic())):
            start = time.monotonic()
            due = max(due + self.pause, start - 1)
            failure = None
            try:
                connection, failure = self.send(connection)
            except (OSError, http.client.HTTPException) as error:
                connection, failure = None, f"{type(error).__name__}: {error}"
            with self.lock:
                self.sent += 1
                self.slowest = max(self.slowest, time.monotonic() - start)
                if failure:
                    self.failures.append(f"{time.strftime('%H:%M:%S')} {failure}")
                    self.failed_at.append(time.time())
                else:
                    since, self.succeeded_at = self.succeeded_at, time.time()
                    self.outage = max(self.outage, (since, self.succeeded_at), key=lambda period: period[1] - period[0])

    def send(self, kept: http.client.HTTPSConnection | None) -> tuple[http.client.HTTPSConnection | None, str | None]:
        for connection in filter(None, (kept, self.caller.connect(15))):
            try:
                connection.request("GET", self.caller.path("/version"), headers=self.caller.headers())
                response = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError):
                connection.close()
                if connection is kept:
                    continue
                raise
            body = response.read()
            failure = None if response.status == 200 else f"{response.status} {body[:300]!r}"
            return None if response.will_close else connection, failure
        raise AssertionError("the last connection returns or raises")

    def succeed_for(self, seconds: float) -> bool:
        """Returns `True` if requests have succeeded for so long, and none has failed."""
        with self.lock:
            now, since = time.time(), max([self.started, *self.failed_at[-1:]])
            return now - self.succeeded_at < 1 and now - max(since, self.outage[1]) >= seconds

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()


@dataclass
class Watch:
    seen: set[str] = field(default_factory=set)
    reconnects: int = 0
    failures: list[str] = field(default_factory=list)


class Watches:
    """Watches of the ConfigMaps of a namespace. Each begins again where it ended."""

    def __init__(self, caller: Caller, namespace: str, count: int) -> None:
        self.caller, self.namespace = caller, namespace
        status, body = caller.get(f"/api/v1/namespaces/{namespace}/configmaps")
        if status != 200:
            raise AcceptanceError(f"the list of a watch failed: {status} {body[:300]!r}")
        self.version = json.loads(body)["metadata"]["resourceVersion"]
        self.stopped = threading.Event()
        self.watches = [Watch() for _ in range(count)]
        self.threads = [threading.Thread(target=self.loop, args=(watch,), daemon=True) for watch in self.watches]
        for thread in self.threads:
            thread.start()

    def loop(self, watch: Watch) -> None:
        version = self.version
        while not self.stopped.is_set():
            connection, established = self.caller.connect(90), False
            try:
                query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds=3600&resourceVersion={version}"
                path = self.caller.path(f"/api/v1/namespaces/{self.namespace}/configmaps?{query}")
                connection.request("GET", path, headers=self.caller.headers())
                response = connection.getresponse()
                established = response.status == 200
                if not established:
                    watch.failures.append(f"{time.strftime('%H:%M:%S')} {response.status} {response.read(300)!r}")
                while established and (line := response.readline()) and not self.stopped.is_set():
                    event = json.loads(line)
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "ADDED":
                        watch.seen.add(event["object"]["metadata"]["name"])
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                # An established stream may end anywhere.
                if not established:
                    watch.failures.append(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}")
            finally:
                connection.close()
            if established:
                watch.reconnects += 1
            else:
                self.stopped.wait(0.5)

    def reconnects(self) -> list[int]:
        return [watch.reconnects for watch in self.watches]

    def failures(self) -> list[str]:
        return [failure for watch in self.watches for failure in watch.failures]

    def stop(self) -> None:
        self.stopped.set()


class Exec:
    """A `kubectl exec` that prints five lines a second until its connection ends."""

    def __init__(self, kubeconfig: Path, namespace: str, pod: str) -> None:
        script = "while true; do echo tick; sleep 0.2; done"
        self.process = subprocess.Popen(["kubectl", f"--kubeconfig={kubeconfig}", f"--namespace={namespace}", "exec", pod, "--", "sh", "-c", script],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.first = threading.Event()
        self.end = 0.0
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        for _ in self.process.stdout:
            self.first.set()
        self.end = time.time()

    def ended(self) -> bool:
        return self.end > 0

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()
