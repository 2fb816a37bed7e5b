"""Upgrades with the values of older charts: `helm upgrade --reuse-values` has their defaults in place of the new ones."""

import json
import re
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import yaml

CHARTS = Path(__file__).resolve().parent


def defaults(chart: Path) -> str:
    """Returns the text of defaults.json: values.yaml, which templates cannot read."""
    return json.dumps(yaml.safe_load((chart / "values.yaml").read_text()), indent=1) + "\n"


def templates_without_defaults(chart: Path) -> list[str]:
    """Returns the templates that do not begin by giving missing values their defaults."""
    begin = f'{{{{- include "{chart.name}.defaults" . -}}}}\n'
    files = [file for file in sorted((chart / "templates").rglob("*")) if file.is_file() and not file.name.startswith("_")]
    return [file.name for file in files if not file.read_text().startswith(begin)]


def commits() -> list[str]:
    return re.findall(r"^[0-9a-f]+", (CHARTS / "upgrades.txt").read_text(), re.MULTILINE)


def older_charts(name: str, directory: Path) -> dict[str, Path] | None:
    """Extracts the chart of each commit of upgrades.txt that has it. Returns `None` if a commit is missing, as in a shallow clone."""
    charts = {}
    for commit in commits():
        if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=CHARTS, capture_output=True, check=False).returncode != 0:
            return None
        archive = subprocess.run(["git", "archive", commit, name], cwd=CHARTS, capture_output=True, check=False)
        if archive.returncode == 0:
            with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
                files.extractall(directory / commit, filter="data")
            charts[commit] = directory / commit / name
    return charts


def with_values_of(chart: Path, older: Path, directory: Path) -> Path:
    """Returns a copy of a chart whose defaults are those of an older one, which is what `--reuse-values` renders."""
    copy = directory / f"{older.parent.name}-{chart.name}"
    shutil.copytree(chart, copy, ignore=shutil.ignore_patterns("ci"))
    shutil.copy(older / "values.yaml", copy / "values.yaml")
    return copy
