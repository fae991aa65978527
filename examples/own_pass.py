"""A pass of your own: it takes part in ordering, checking, dumps and bisection like the built-in ones.

The pass replaces `x ** 3`, which costs a call of a power function for each element, by two multiplications.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule

import optpass
from optpass.passes.base import PassContext

aten = torch.ops.aten


@optpass.register_pass(stage="tensor", after="canonicalise")
def expand_cube(gm: GraphModule, ctx: PassContext) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=aten.pow.Tensor_Scalar):
        x, exponent = node.args
        if exponent != 3:
            ctx.decline("cube", node, f"the exponent is {exponent}")
            continue
        with gm.graph.inserting_before(node):
            square = ctx.insert(gm.graph, aten.mul.Tensor, (x, x), like=node)
            cube = ctx.insert(gm.graph, aten.mul.Tensor, (square, x), like=node)
        node.replace_all_uses_with(cube)
        gm.graph.erase_node(node)
        print(f"replaced {node.name}")


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def main() -> None:
    x = torch.randn(256, 256)
    result = torch.compile(gelu_tanh, backend="optpass", options={"cache": False})(x)
    torch.testing.assert_close(result, torch.nn.functional.gelu(x, approximate="tanh"))
    print("the compiled function agrees with torch's own")


if __name__ == "__main__":
    main()
