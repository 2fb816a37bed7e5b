"""The moments at which pods are deleted."""

import datetime
import subprocess
import threading


class Deletions:
    """Follows the pods of a namespace, and keeps the time at which the deletion of each began."""

    def __init__(self, namespace: str) -> None:
        columns = "{.metadata.name} {.metadata.deletionTimestamp} {.metadata.deletionGracePeriodSeconds}{'\\n'}"
        self.process = subprocess.Popen(["kubectl", "get", "pods", f"--namespace={namespace}", "--watch", f"--output=jsonpath={columns}"],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.moments: dict[str, float] = {}
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    @property
    def times(self) -> list[float]:
        return list(self.moments.values())

    def follow(self) -> None:
        for line in self.process.stdout:
            name, *deletion = line.split()
            if len(deletion) == 2 and name not in self.moments:
                end = datetime.datetime.fromisoformat(deletion[0]).timestamp()
                self.moments[name] = end - int(deletion[1])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()
