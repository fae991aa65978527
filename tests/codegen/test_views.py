"""Each view operator's index map against the view that PyTorch makes."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optpass.codegen import views
from optpass.codegen.dims import linear, single
from optpass.codegen.expr import axis_symbol
from optpass.codegen.meta import shape_of

pytestmark = pytest.mark.null
aten = torch.ops.aten

VIEWS = {
    "view": lambda x: aten.view.default(x, [3, 2, 20]),
    "view that does not nest": lambda x: aten.view.default(x, [5, 8, 3]),
    "permute": lambda x: aten.permute.default(x, [2, 0, 1]),
    "permute, negative": lambda x: aten.permute.default(x, [-1, 0, -2]),
    "transpose": lambda x: aten.transpose.int(x, 0, -1),
    "unsqueeze": lambda x: aten.unsqueeze.default(x, -2),
    "squeeze": lambda x: aten.squeeze.dim(aten.unsqueeze.default(x, 1), 1),
    "expand": lambda x: aten.expand.default(aten.unsqueeze.default(x, 0), [3, 4, 5, 6]),
    "slice": lambda x: aten.slice.Tensor(x, 1, 1, 4),
    "slice, step": lambda x: aten.slice.Tensor(x, -1, 1, 6, 2),
    "slice, negative": lambda x: aten.slice.Tensor(x, 2, -4, -1),
    "slice past the end": lambda x: aten.slice.Tensor(x, 2, 3, 1 << 62),
    "select": lambda x: aten.select.int(x, 1, 2),
    "select, negative": lambda x: aten.select.int(x, -1, -2),
    "flip": lambda x: aten.flip.default(x, [0, -1]),
    "diagonal": lambda x: aten.diagonal.default(x, 0, 0, 2),
    "diagonal above": lambda x: aten.diagonal.default(x, 2, 1, 2),
    "diagonal below": lambda x: aten.diagonal.default(x, -1, 2, 0),
    "unfold": lambda x: aten.unfold.default(x, 1, 2, 1),
    "unfold, step": lambda x: aten.unfold.default(x, 2, 3, 2),
    "split": lambda x: aten.split.Tensor(x, 2, 2)[1],
    "split unevenly": lambda x: aten.split_with_sizes.default(x, [1, 2, 1], 0)[2],
    "unbind": lambda x: aten.unbind.int(x, 1)[3],
}


@pytest.mark.parametrize("name", VIEWS)
def test_source(name):
    """Element p of a view of 0, 1, 2, … is the position that the map gives for p."""
    x = torch.arange(120).view(4, 5, 6)
    gm = make_fx(VIEWS[name], tracing_mode="fake")(x)
    (output,) = gm.graph.find_nodes(op="output")
    node, result = output.args[0], VIEWS[name](x)
    axes = [axis_symbol(f"r{d}") for d in range(result.dim())]
    dims = [single(a, n) for a, n in zip(axes, shape_of(node))]
    while views.is_view(node):
        node, dims = views.source(node, dims)
    index = sympy.sympify(linear(dims, x.stride()))
    for point in itertools.product(*map(range, result.shape)):
        assert index.subs(dict(zip(axes, point))) == result[point].item()


@pytest.mark.parametrize("name", [n for n in VIEWS if n.startswith(("permute", "transpose", "unsqueeze"))])
def test_push_undoes_source(name):
    gm = make_fx(VIEWS[name], tracing_mode="fake")(torch.empty(4, 5, 6))
    (node,) = gm.graph.find_nodes(op="output")[0].all_input_nodes
    dims = [single(axis_symbol(f"r{d}"), n) for d, n in enumerate(shape_of(node.args[0]))]
    _, back = views.source(node, views.push(node, dims))
    assert list(back) == dims
