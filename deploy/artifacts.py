"""The parts that images, archives and Debian packages of kas and agentk share: crates, lists of components, licences, manual pages."""

import gzip
import html
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
# Licences of which Debian has one text for all packages.
COMMON_LICENCES = Path("/usr/share/common-licenses")
# The package of each program.
PROGRAMS = {"kas": "gateway", "agentk": "agent"}
SHELLS = ("bash", "fish", "zsh")


class BuildError(Exception):
    """Says what failed and what to do."""


def run(*command: str, env: dict[str, str] | None = None, output: bool = True) -> str:
    result = subprocess.run(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE if output else None, check=False)
    if result.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` failed with exit code {result.returncode}")
    return result.stdout or ""


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def target_libraries(triple: str) -> Path:
    """Returns the directory of Rust's libraries for a target, which exists if `rustup target add` has installed them."""
    return Path(run("rustc", "--print", "target-libdir", "--target", triple).strip())


def build(command: str, *arguments: str, env: dict[str, str], rustflags: tuple[str, ...] = ()) -> None:
    """Builds the programs with a command of cargo. The paths of this machine do not get into them."""
    prefixes = {os.environ.get("CARGO_HOME", f"{Path.home()}/.cargo") + "/registry/src": "/registry", str(ROOT): "/src"}
    environment = {
        **os.environ,
        "RUSTFLAGS": " ".join([*(f"--remap-path-prefix={path}={name}" for path, name in prefixes.items()), *rustflags]),
        "CFLAGS": " ".join(f"-ffile-prefix-map={path}={name}" for path, name in prefixes.items()),
        **env,
    }
    packages = [flag for package in PROGRAMS.values() for flag in ("--package", package)]
    run("cargo", "auditable", command, "--locked", "--bins", *packages, *arguments, env=environment, output=False)


@dataclass
class Crates:
    """The packages that are linked into a program."""

    packages: list[dict]
    edges: dict[str, set[str]]


def crates(name: str, triple: str) -> Crates:
    """Returns the crates of a program."""
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", triple))
    known = {(item["name"], item["version"]): item for item in metadata["packages"]}
    tree = run("cargo", "tree", "--locked", "--package", PROGRAMS[name], "--target", triple, "--edges", "normal,no-proc-macro",
               "--prefix", "depth", "--format", " {p}")
    stack: list[str] = []
    found: dict[str, dict] = {}
    edges: dict[str, set[str]] = {}
    for depth, crate, number in re.findall(r"^(\d+) (\S+) v(\S+)", tree, re.MULTILINE):
        key = f"{crate}@{number}"
        found[key] = known[crate, number]
        edges.setdefault(key, set())
        stack[int(depth):] = [key]
        if len(stack) > 1:
            edges[stack[-2]].add(key)
    return Crates([found[key] for key in sorted(found)], edges)


def stripped(program: Path) -> bytes:
    """Returns a program without debug information. The profile image has none, and objcopy knows this machine's architecture only."""
    if " .debug_" not in run("readelf", "--wide", "--sections", str(program)):
        return program.read_bytes()
    # Not beside the program: two scripts may strip it at the same time.
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, program.name)
        run("objcopy", "--strip-debug", str(program), str(copy))
        return copy.read_bytes()


def bill_of_materials(name: str, linked: Crates, others: list[dict]) -> bytes:
    """Returns the components of a program and `others` as CycloneDX, without a serial number and a time, which would differ each time."""
    checksums = {(item["name"], item["version"]): item.get("checksum")
                 for item in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    components = []
    for item in linked.packages:
        component = {"type": "library", "bom-ref": f"{item['name']}@{item['version']}", "name": item["name"], "version": item["version"]}
        if item["license"]:
            component["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", item["license"])}]
        if checksum := checksums.get((item["name"], item["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
            component["purl"] = f"pkg:cargo/{item['name']}@{quote(item['version'])}"
        components.append(component)
    program = next(item for item in components if item["name"] == PROGRAMS[name])
    components.remove(program)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**program, "type": "application", "name": name}},
        "components": components + others,
        "dependencies": [{"ref": ref, "dependsOn": sorted(linked.edges[ref])} for ref in sorted(linked.edges)],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def licence_files(directory: Path) -> list[Path]:
    """Returns the files with licences of a package, those of the foreign sources below it included."""
    names = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)(?!.*\.rs$)", re.IGNORECASE)
    return [file for file in sorted(directory.rglob("*")) if names.match(file.name) and file.is_file()]


def standard_text(package: dict) -> str:
    """Returns the text of the licence that a package names, without a file of its own."""
    names = re.split(r" OR | ?/ ?", package["license"] or "")
    if "Apache-2.0" in names:
        return (COMMON_LICENCES / "Apache-2.0").read_text()
    if "MIT" in names:
        holders = ", ".join(package["authors"]) or f"the authors of {package['name']}"
        return re.sub(r"(?<=\nCopyright \(c\) ).*", lambda _: holders, (ROOT / "LICENSE").read_text())
    raise BuildError(f"{package['name']} has no file with its licence, {package['license']}, whose text is not known here either: add it to "
                     "standard_text in deploy/artifacts.py")


def standard_library() -> dict[str, str]:
    """Returns the notices of Rust's standard library, which each program has, and the licences that they name, by their titles."""
    directory = Path(run("rustc", "--print", "sysroot").strip(), "share/doc/rust")
    notices = directory / "COPYRIGHT-library.html"
    if not notices.is_file():
        raise BuildError(f"Rust's standard library has no licences here: there is no {notices}, which rustup installs with rustc")
    seen: set[str] = set()

    def once(block: re.Match) -> str:
        known = block[1] in seen
        seen.add(block[1])
        return "(The text is above.)" if known else block[1]

    # Each component has its licences in elements `pre`, and many have the same ones.
    text = re.sub(r"<pre>(.*?)</pre>", once, notices.read_text(), flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", "", text))
    text = re.sub(r"\n\s*\n", "\n\n", text)
    named = [file for file in sorted((directory / "licenses").glob("*.txt")) if file.stem in text]
    return {"Rust's standard library": text, **{f"Rust's standard library, {file.stem}": file.read_text() for file in named}}


def licences(name: str, linked: Crates, others: dict[str, str]) -> bytes:
    """Returns the licences of a program, and `others` by their titles. A text that several components have is there once."""
    texts: dict[str, list[str]] = {(ROOT / "LICENSE").read_text().strip(): ["kas and agentk"]}
    for item in linked.packages:
        if item["source"] is None:
            continue
        title = f"{item['name']} {item['version']} ({item['license'] or 'see the text'})"
        found = [file.read_text(errors="replace") for file in licence_files(Path(item["manifest_path"]).parent)]
        for text in found or [standard_text(item)]:
            titles = texts.setdefault(text.strip(), [])
            if title not in titles:
                titles.append(title)
    for title, text in {**standard_library(), **others}.items():
        texts.setdefault(text.strip(), []).append(title)
    if name == "kas":
        texts[(ROOT / "features/web/page/dist/third-party-licences.txt").read_text().strip()] = ["the packages of the web page"]
    line = "=" * 79
    return "\n".join(f"{line}\n{chr(10).join(titles)}\n{line}\n\n{text}\n" for text, titles in texts.items()).encode()


def manual(name: str, program: Path) -> dict[str, bytes]:
    """Returns the manual pages by their file names: of kas one for each command."""
    with tempfile.TemporaryDirectory() as directory:
        if name == "kas":
            run(str(program), "man", "--directory", directory)
        else:
            Path(directory, f"{name}.1").write_text(run(str(program), "man"))
        return {page.name: page.read_bytes() for page in sorted(Path(directory).iterdir())}


def completions(program: Path) -> dict[str, bytes]:
    """Returns the completions by their shells."""
    return {shell: run(str(program), "completion", shell).encode() for shell in SHELLS}


def tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """Returns an archive of files with their modes, and of the directories above them. Names that end in / are directories."""
    names = set(files)
    for name in files:
        names.update(f"{parent}/" for parent in Path(name.rstrip("/")).parents if str(parent) != ".")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(names):
            content, mode = files.get(name, (b"", 0o755))
            entry = tarfile.TarInfo(name.rstrip("/"))
            entry.mode, entry.size = mode, len(content)
            if name.endswith("/"):
                entry.type = tarfile.DIRTYPE
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def compressed(content: bytes, level: int) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=level, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()
