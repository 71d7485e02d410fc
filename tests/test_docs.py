"""The documentation keeps up with what it documents."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[<>=!~ ]", requirement)[0].lower() for group in groups for requirement in group}
    rows = re.findall(r"^\| ([a-z0-9-]+) \| (.+) \|$", (ROOT / "docs" / "dependencies.md").read_text(), re.M)
    assert names <= {name for name, _ in rows}


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
