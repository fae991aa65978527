"""What is installed is what is in the tree, and it works from a wheel."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
#: Folders at the top that hold packages, and the import names that they have.
TOPS = {folder: name for name, folder in SETUPTOOLS["package-dir"].items() if "/" not in folder}


def packages() -> dict[str, Path]:
    """Import name and folder of every package in the tree."""
    found = {}
    for top, name in TOPS.items():
        for init in (ROOT / top).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / top).parts
            found[".".join([name, *inner])] = init.parent
    return found


@pytest.mark.null
def test_every_package_is_listed():
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages())


@pytest.mark.null
def test_every_module_is_in_a_package():
    folders = set(packages().values())
    for top in TOPS:
        assert {path.parent for path in (ROOT / top).rglob("*.py")} <= folders


@pytest.mark.null
def test_every_data_file_is_listed():
    for name, folder in packages().items():
        patterns = SETUPTOOLS["package-data"].get(name, [])
        for path in folder.iterdir():
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                assert any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns), path


SMOKE = """
import pathlib, sys, torch
x = torch.randn(8, 16)
def f(x): return torch.softmax(x.sin() + 1, -1)
result = torch.compile(f, backend="optpass", options={"cache": False})(x)
torch.testing.assert_close(result, f(x))
import optpass, optpass.passes
assert all(pathlib.Path(sys.argv[1]) in pathlib.Path(m.__file__).parents for m in (optpass, optpass.passes))
print("works")
"""


@pytest.mark.cpu
def test_the_wheel_works(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    for top in TOPS:
        shutil.copytree(ROOT / top, source / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    assert "works" in run([sys.executable, "-c", SMOKE, site], tmp_path, PYTHONPATH=str(site))


def run(command: list[object], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
