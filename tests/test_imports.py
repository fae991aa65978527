"""What importing optpass loads, how PyTorch finds it, and where PyTorch's private names are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("optpass", "passes", "codegen", "autotune", "backends", "benchmarks", "examples")
#: The one page of private names.
PRIVATE = ROOT / "optpass" / "torch_private.py"


def python(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.null
def test_importing_optpass_loads_no_compiler(tmp_path):
    code = """
import sys, time
start = time.perf_counter()
import optpass
seconds = time.perf_counter() - start
assert "torch" not in sys.modules and "triton" not in sys.modules
assert seconds < 1, seconds
"""
    python(code, tmp_path)


@pytest.mark.cpu
def test_compiling_loads_no_triton_and_no_inductor_beyond_what_dynamo_does(tmp_path):
    code = """
import sys
import torch
x = torch.ones(2)
torch.compile(lambda x: x + 1, backend="eager")(x)
before = set(sys.modules)
torch.compile(lambda x: x + 1, backend="optpass", options={"cache": False})(x)
loaded = set(sys.modules) - before
print([name for name in loaded if name.split(".")[0] == "triton" or name == "torch._inductor.compile_fx"])
"""
    assert python(code, tmp_path).strip() == "[]"


@pytest.mark.cpu
def test_torch_finds_the_backend_by_itself_and_needs_no_triton_on_a_cpu(tmp_path):
    code = """
import sys
sys.modules["triton"] = None
import torch
f = torch.compile(lambda x: x.sin() + 1, backend="optpass")
x = torch.randn(5)
torch.testing.assert_close(f(x), x.sin() + 1)
"""
    python(code, tmp_path)


@pytest.mark.null
def test_private_names_of_torch_stand_on_one_page():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != PRIVATE
        for line, name in private_names(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.null
def test_the_scan_sees_each_way_of_naming():
    text = "import torch._x\nfrom torch._x import y\nfrom torch.x import _y\ntorch._C.f()\nimport torch.a._b as c\n"
    allowed = "torch.__version__\ntorch.ops.aten._softmax\nfrom torch import nn\nself._x\n"
    assert {line for line, _ in private_names(ast.parse(text + allowed))} == {1, 2, 3, 4, 5}


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private names of torch that a module imports or reaches by attribute; operators' own names do not count."""
    for node in ast.walk(tree):
        for name in names_of(node):
            parts = name.split(".")
            if parts[0] == "torch" and parts[1:2] != ["ops"] and any(map(is_private, parts)):
                yield node.lineno, name


def names_of(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.Attribute(value=ast.Name(id="torch"), attr=attr):
            return [f"torch.{attr}"]
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr=middle), attr=attr):
            return [f"torch.{middle}.{attr}"] if not is_private(middle) else []
        case _:
            return []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
