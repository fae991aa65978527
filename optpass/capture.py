"""From Dynamo's graph to normalised pre-autograd ATen: the form that the semantic passes read.

Dynamo hands over a graph of torch functions and methods (`F.layer_norm`, `Tensor.softmax`). Tracing it under
PyTorch's pre-dispatch mode spells it in ATen without taking it apart: linear, matmul, softmax, layer_norm, dropout and
scaled_dot_product_attention stay one node each, and autograd has not run yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Interpreter

from optpass.errors import CaptureError
from optpass.torch_private import MODE_SWITCHES, HigherOrderOperator, TracingContext, make_fx, preserve_node_meta


def why_not_normalise(gm: GraphModule) -> str | None:
    """Why a graph goes to autograd as Dynamo gave it; None if it can be normalised."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, HigherOrderOperator):
            return f"it contains the higher-order operator {node.target}"
        if node.op == "call_function" and node.target in MODE_SWITCHES:
            return f"it switches a mode inside the graph ({node.target.__name__})"  # type: ignore[union-attr]
        if node.op == "call_module" and isinstance(gm.get_submodule(node.target), GraphModule):
            return f"it calls the sub-graph {node.target}"
    return None


def normalise(gm: GraphModule, inputs: Sequence[object]) -> GraphModule:
    """The same graph in pre-autograd ATen.

    Args:
        gm: Dynamo's graph.
        inputs: its example inputs: tensors (real or fake) and ints.

    Returns:
        A graph module with the same placeholders (names and Dynamo's marks kept).

    Raises:
        CaptureError: tracing failed; the caller goes on with Dynamo's own graph.
    """
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None:
        raise CaptureError("no tracing context: the graph does not come from torch.compile")
    try:
        fakes = [_fake(x, context) for x in inputs]
        with context.fake_mode, preserve_node_meta():
            traced = make_fx(Interpreter(gm).run, pre_dispatch=True, tracing_mode="real", _allow_non_fake_inputs=True)(
                *fakes
            )
    except Exception as error:
        raise CaptureError(f"the graph could not be traced before autograd: {error}") from error
    if traced.graph.find_nodes(op="get_attr"):
        raise CaptureError("the graph holds tensor constants")
    _carry_marks(gm, traced)
    return traced


def _fake(x: object, context: TracingContext) -> object:
    """The stand-in that Dynamo's own tracing used for an input, symbolic sizes included."""
    if not isinstance(x, torch.Tensor):
        return x
    symbolic = context.tensor_to_context.get(x)
    return context.fake_mode.from_tensor(
        x,
        static_shapes=symbolic is None,
        symbolic_context=symbolic,
        source=symbolic.tensor_source if symbolic is not None else None,
    )


def _carry_marks(old: GraphModule, new: GraphModule) -> None:
    """Keeps what Dynamo attached for AOTAutograd: sources of inputs, parameter names, compile id."""
    new.meta.update(old.meta)
    for name in ("_param_name_to_source", "_backend_id"):
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    old_inputs = [n for n in old.graph.nodes if n.op == "placeholder"]
    new_inputs = [n for n in new.graph.nodes if n.op == "placeholder"]
    for before, after in zip(old_inputs, new_inputs, strict=True):
        for name in ("_dynamo_source", "_dynamo_static_input_type"):
            if hasattr(before, name):
                setattr(after, name, getattr(before, name))
        after.meta.update({k: v for k, v in before.meta.items() if k not in ("val", "example_value")})
