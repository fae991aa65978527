"""Plans on disk: a fresh process takes them, gives the same bits, and what should change the key does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optpass.backends.cpu import cpu_target
from optpass.options import Options
from optpass.plan import graph_key

SCRIPT = textwrap.dedent("""
    import sys
    import torch
    import optpass.execute as execute
    from optpass.passes.fusion.fuse_regions import FuseRegions

    fused = []
    run = FuseRegions.run
    FuseRegions.run = lambda self, gm, ctx: (fused.append(1), run(self, gm, ctx))[1]

    def fn(x, w):
        y = torch.nn.functional.layer_norm(x @ w, (7,)).softmax(-1)
        return y * 3, y.argmax(-1)

    torch.manual_seed(0)
    x, w = torch.randn(9, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    y, at = torch.compile(fn, backend="optpass")(x, w)
    y.square().sum().backward()
    print(len(fused))
    torch.save([y.detach(), at, x.grad, w.grad], sys.argv[1])
""")


@pytest.mark.cpu
def test_a_fresh_process_takes_the_plan_and_gives_the_same_bits(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "OPTPASS_CACHE_DIR": str(tmp_path / "store"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    counts, results = [], []
    for k in range(2):
        out = subprocess.run(
            [sys.executable, script, tmp_path / f"{k}.pt"], env=environment, capture_output=True, text=True, check=True
        )
        counts.append(int(out.stdout.split()[-1]))
        results.append(torch.load(tmp_path / f"{k}.pt"))
    assert counts == [2, 0]
    for a, b in zip(*results):
        assert torch.equal(a, b)


def key(fn, *inputs, **options):
    return graph_key(make_fx(fn, tracing_mode="fake")(*inputs), Options.parse(None, options), cpu_target(), "compiler")


X = torch.zeros(3, 4)


@pytest.mark.null
def test_equal_graphs_have_one_key():
    assert key(lambda x: x * 2, X) == key(lambda x: x * 2, X + 1)


@pytest.mark.null
@pytest.mark.parametrize(
    "fn, x, options",
    [
        (lambda x: x * 3, X, {}),
        (lambda x: x * 2.0, X, {}),
        (lambda x: x * 2, X.double(), {}),
        (lambda x: x * 2, X.t(), {}),
        (lambda x: x * 2, X.t().contiguous().t(), {}),
        (lambda x: x * 2, X, {"parity": "eager"}),
        (lambda x: x * 2, X, {"disable": ["fuse-regions"]}),
    ],
)
def test_what_changes_the_key(fn, x, options):
    assert key(lambda x: x * 2, X) != key(fn, x, **options)


@pytest.mark.null
@pytest.mark.parametrize("options", [{"verify": "numeric"}, {"bisect_limit": 3}])
def test_what_looks_at_passes_takes_no_plan(options):
    assert key(lambda x: x * 2, X, **options) is None


@pytest.mark.null
def test_a_graph_with_a_constant_tensor_has_no_key():
    assert key(lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), X) is None
