"""What the package imports is what it declares, with bounds; and the lock has it."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tokenline"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DEPENDENCIES = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(text) for text in texts if not text.startswith("tokenline[")]
    for name, texts in PROJECT["optional-dependencies"].items()
}

# Where the code reaches behind the public interface of a package, or leans on the exact form of what it makes, the next
# release may break it: no release is taken before it has been tried.
PINNED_CLOSELY = {"jinja2", "llvmlite", "numba", "sse-starlette", "uvicorn"}


def imported(folder: Path, without: Path | None = None) -> dict[str, set[Path]]:
    """Top-level packages of others that the files of a folder import, at any place in them, and which files do."""
    found: dict[str, set[Path]] = {}
    for file in folder.rglob("*.py"):
        if without is not None and without in file.parents:
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"tokenline"}:
                found.setdefault(name, set()).add(file.relative_to(ROOT))
    return found


def distributions(names: dict[str, set[Path]]) -> dict[str, set[Path]]:
    known = packages_distributions()
    return {canonicalize_name(known[name][0]): files for name, files in names.items()}


def test_all_that_is_imported_is_declared_and_all_that_is_declared_is_imported() -> None:
    found = distributions(imported(PACKAGE, without=PACKAGE / "models" / "torch"))
    declared = {canonicalize_name(requirement.name) for requirement in DEPENDENCIES}
    assert found.keys() - declared == set(), found
    assert declared - found.keys() == set()


def test_what_tests_and_tools_import_is_declared() -> None:
    found: dict[str, set[Path]] = {}
    for folder in ("tests", "bench", "scripts", "examples"):
        found |= imported(ROOT / folder)
    ours = {"tests", "bench", *(file.stem for file in (ROOT / "scripts").glob("*.py"))}
    peers = {"openvino_genai", "xgrammar"}  # what benchmarks compare with; who runs these installs them
    declared = {canonicalize_name(one.name) for some in (DEPENDENCIES, *EXTRAS.values()) for one in some}
    names = distributions({name: files for name, files in found.items() if name not in ours | peers})
    assert names.keys() - declared == set(), names


def test_pytorch_is_imported_in_its_own_package_alone() -> None:
    needs = distributions(imported(PACKAGE / "models" / "torch")).keys()
    extra = {canonicalize_name(requirement.name) for requirement in EXTRAS["torch"]}
    assert needs <= extra | {canonicalize_name(requirement.name) for requirement in DEPENDENCIES}
    assert "torch" in needs
    users = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if "tokenline.models.torch" in file.read_text("utf-8") and PACKAGE / "models" / "torch" not in file.parents
    }
    assert users == {"models/load.py"}


@pytest.mark.parametrize("requirement", DEPENDENCIES, ids=lambda requirement: requirement.name)
def test_every_dependency_has_bounds_and_what_is_installed_lies_within(requirement: Requirement) -> None:
    operators = {specifier.operator for specifier in requirement.specifier}
    assert operators & {">=", "==", "~="}, "a lower bound"
    assert operators & {"<", "==", "~="}, "an upper bound"
    assert requirement.specifier.contains(version(requirement.name), prereleases=True)
    if requirement.name in PINNED_CLOSELY:
        major, minor, *_ = Version(version(requirement.name)).release
        assert not requirement.specifier.contains(f"{major}.{minor + 1}"), "the next minor release has not been tried"


def test_the_lock_has_every_requirement() -> None:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for requirement in [*DEPENDENCIES, *(one for some in EXTRAS.values() for one in some)]:
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True), requirement


def test_every_dependency_has_its_reason_and_no_other_has() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    explained: dict[str, set[str]] = {}
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        title = section.splitlines()[0]
        extra = re.search("`(.+)`", title)
        explained[extra[1] if extra else ""] = set(re.findall(r"^\| ([a-z0-9-]+) \| .+ \|$", section, re.M)) - {
            "package"
        }
    groups = {"": DEPENDENCIES, **EXTRAS}
    assert explained == {name: {canonicalize_name(one.name) for one in some} for name, some in groups.items()}
