"""The house rules that a reader relies on: small modules, plain names, XML and aiohttp kept in their rooms."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "bench", "rdma", "storage", "conformance")
MAX_LINES = 400
VAGUE_NAMES = {"utils", "util", "helper", "helpers", "manager", "common", "misc"}

MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_is_small_and_named_for_what_it_does(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MAX_LINES
    assert path.stem not in VAGUE_NAMES


def test_only_the_xml_package_imports_an_xml_library() -> None:
    libraries = {"xml", "xmltodict", "lxml", "defusedxml"}
    users = [path for path in MODULES if imported(path) & libraries]
    assert {path.parent for path in users if path.is_relative_to(ROOT / "gateway")} <= {ROOT / "gateway" / "xml"}
    assert not [path for path in users if path.is_relative_to(ROOT / "storage")]


def test_operations_never_see_the_web_framework_or_the_database() -> None:
    for path in (ROOT / "gateway" / "operations").rglob("*.py"):
        assert not imported(path) & {"aiohttp", "lmdb", "xmltodict", "xml", "uvloop"}, path


def test_lmdb_stays_in_the_storage_engine() -> None:
    users = {path.parent.name for path in MODULES if "lmdb" in imported(path)}
    assert users <= {"storage"}


def test_conformance_imports_nothing_of_the_product() -> None:
    for path in (ROOT / "conformance").rglob("*.py"):
        assert "s3verbs" not in imported(path), path


def test_the_packages_are_symlinks_of_the_source_tree() -> None:
    for package in ("gateway", "bench", "rdma", "storage"):
        link = ROOT / "src" / "s3verbs" / package
        assert link.is_symlink()
        assert link.resolve() == ROOT / package
