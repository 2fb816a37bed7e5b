"""The platforms of the images, and the shared libraries that the images have: their Debian packages and licences."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from artifacts import COMMON_LICENCES, BuildError, run, target_libraries


@dataclass(frozen=True)
class Platform:
    architecture: str
    """The name in OCI."""
    triple: str
    """The name in Rust."""
    directory: str
    """Debian's directory of libraries, which is also the prefix of its compilers."""

    def compiler(self) -> str:
        return f"{self.directory}-gcc"

    def missing(self) -> str | None:
        """Says what is missing to build for this platform."""
        if not target_libraries(self.triple).exists():
            return f"Rust's library for it (rustup target add {self.triple})"
        if not shutil.which(self.compiler()):
            return self.compiler()
        return None


HOST = Platform("amd64", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu")
ARM = Platform("arm64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu")
PLATFORMS = (ARM, HOST) if os.uname().machine == "aarch64" else (HOST, ARM)


def libraries(program: Path, platform: Platform) -> tuple[dict[str, Path], set[str]]:
    """Returns the shared libraries of a program, from their paths in the image to those here, and their Debian packages.

    glibc has the modules for files and DNS itself since 2.34.
    """
    interpreter = re.search(r"interpreter: (\S+)\]", run("readelf", "--wide", "--program-headers", str(program)))
    if not interpreter:
        return {}, set()
    found: dict[str, Path] = {}
    packages = set()
    waiting = [program]
    while waiting:
        for name in re.findall(r"\(NEEDED\).*\[(\S+)\]", run("readelf", "--wide", "--dynamic", str(waiting.pop()))):
            loader = name == Path(interpreter[1]).name
            target = interpreter[1] if loader else f"/lib/{platform.directory}/{name}"
            if target not in found:
                path = run(platform.compiler(), f"-print-file-name={name}").strip()
                found[target] = Path(os.path.normpath(path))
                packages.add(debian_package(found[target]))
                waiting.append(found[target])
    return found, packages


def debian_package(path: Path) -> str:
    """Returns the name of the package that a file belongs to."""
    # Debian's /lib is a link to /usr/lib, and packages name either.
    candidates = [str(path), str(path).removeprefix("/usr"), f"/usr{path}"]
    for candidate in candidates:
        result = subprocess.run(["dpkg-query", "--search", candidate], text=True, capture_output=True, check=False)
        if result.returncode == 0:
            return result.stdout.split(": ")[0]
    raise BuildError(f"no Debian package has {path}: build the images on Debian, with the packages of gcc and libc6")


def debian_copyright(package: str) -> str:
    return Path("/usr/share/doc", package.split(":")[0], "copyright").read_text()


def common_licences(packages: list[str]) -> dict[str, bytes]:
    """Returns the texts to which the licences of Debian's packages refer, at their paths."""
    named = {path for package in packages for path in re.findall(rf"{COMMON_LICENCES}/[\w.-]*\w", debian_copyright(package))}
    return {path[1:]: Path(path).read_bytes() for path in sorted(named)}
