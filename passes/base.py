"""What a pass is, what it is given and what it leaves behind."""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch.fx import Graph, GraphModule, Node

from optpass.options import Options
from optpass.passes.accounting import total_cost
from optpass.passes.meta import Vouched, fake_value
from optpass.report import Declined, GraphReport, Rewrite
from optpass.torch_private import FakeTensorMode, ShapeEnv, optimization_hint, statically_known_true

if TYPE_CHECKING:
    from optpass.codegen.target import Target

__all__ = [
    "Declined",
    "Fact",
    "Pass",
    "PassContext",
    "PassResult",
    "Rewrite",
    "RewriteCounter",
    "Stage",
    "source_line",
]


class Stage(enum.StrEnum):
    """Where in the compilation a graph is."""

    SEMANTIC = "semantic"
    """ATen before autograd: `linear`, `softmax`, `layer_norm` are single nodes; in-place operations may occur."""
    JOINT = "joint"
    """Functional ATen, forward and backward in one graph, before it is partitioned."""
    TENSOR = "tensor"
    """Functional ATen, one direction; the only writes are trailing `copy_` into inputs."""
    FUSION = "fusion"
    """The tensor graph in which groups of nodes become `call_module` nodes."""


class Fact(enum.Enum):
    """A property of a graph that a pass may need; each has a checker in `verify.py`."""

    FUNCTIONAL = "no node writes to an argument, except `copy_` into an input"
    VALUES = "every node that computes carries its fake value in `meta['val']`"


class Pass(ABC):
    """A graph-to-graph rewrite.

    A subclass states its `name`, the facts that it `needs`, and whether its rewrites are `exact` (the same bits, NaN
    for NaN). Its docstring follows the order: one sentence, Before/After, Holds when, Leaves alone, Numerics, Source.

    `run` changes the graph of `gm` in place. Before each single rewrite it asks `ctx.apply`, and goes on only if told
    so; a candidate that a predicate rules out is recorded with `ctx.decline`. The graph must be complete whenever
    `apply` is asked, because the rewrite before is checked there, and a node that stays keeps its value. The manager
    does the timing, checking, dumping and undoing; no fake mode and no gradient is on while a pass runs.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.VALUES})
    exact: ClassVar[bool] = False

    @abstractmethod
    def run(self, gm: GraphModule, ctx: PassContext) -> None: ...


@dataclass(slots=True)
class PassResult:
    """What one run of a pass did; `failure` says why it was undone, if it was."""

    changed: bool = False
    rewrites: list[Rewrite] = field(default_factory=list)
    declined: dict[tuple[str, str, str], Declined] = field(default_factory=dict)
    failure: str | None = None


class RewriteCounter:
    """Numbers the rewrites of a process from 1, in the order in which they are asked for. Safe to use from threads."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self.value += 1
            return self.value

    def reset(self, value: int = 0) -> None:
        with self._lock:
            self.value = value


PROCESS_COUNTER = RewriteCounter()


class DumpSink(Protocol):
    """Where graphs go for a person to read; see `optpass.dump`."""

    def render(self, gm: GraphModule) -> str: ...
    def write_capture(self, gm: GraphModule) -> None: ...
    def write_pass(self, stage: str, name: str, before: str, after: str) -> None: ...
    def write_report(self, report: GraphReport) -> None: ...
    def write(self, name: str, text: str) -> None: ...


@dataclass(slots=True)
class PassContext:
    """What a pass may know and use besides the graph.

    Attributes:
        options: the user's options.
        report: record of the graph being compiled.
        target: capabilities of the machine compiled for; `None` in tests of passes that do not ask.
        device: where the graph runs.
        is_inference: no backward follows.
        fake_mode: the mode of the `meta["val"]` tensors; found from the graph when `None`.
        counter: numbers the rewrites; shared by every graph of the process.
        dump: sink for graphs, or `None`.
    """

    options: Options
    report: GraphReport = field(default_factory=lambda: GraphReport("graph"))
    target: Target | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    is_inference: bool = True
    fake_mode: FakeTensorMode | None = None
    counter: RewriteCounter = PROCESS_COUNTER
    dump: DumpSink | None = None
    _run: _Run = field(init=False)

    def __post_init__(self) -> None:
        self._run = _Run()

    @property
    def shape_env(self) -> ShapeEnv | None:
        return self.fake_mode.shape_env if self.fake_mode else None

    def apply(self, rule: str, *nodes: Node) -> bool:
        """Ask before a rewrite of `nodes`; go on only if the answer is true.

        Args:
            rule: the rule's name, its equation where there is one (`mul-one`).
            nodes: the nodes that the rewrite replaces or changes; the last one names it.
        """
        self.finish_rewrite()
        run, number = self._run, self.counter.next()
        limit = self.options.bisect_limit
        if limit is not None and number > limit:
            refusal = "bisect_limit"
        else:
            refusal = run.blocked.get(number)
        if refusal is not None:
            self.decline(rule, nodes[-1] if nodes else None, refusal)
            return False
        before = total_cost(nodes)
        names = tuple(node.name for node in nodes)
        source = source_line(nodes[-1]) if nodes else ""
        record = Rewrite(number, run.stage, run.pass_name, rule, names, source, before.bytes, 0, before.flops, 0)
        run.result.rewrites.append(record)
        run.open, run.touched = record, list(nodes)
        return True

    def decline(self, rule: str, node: Node | None, reason: str) -> None:
        """Record that a rule looked at `node` and left it alone, because `reason` does not hold (or does)."""
        name, source = (node.name, source_line(node)) if node is not None else ("", "")
        record = Declined(self._run.stage, self._run.pass_name, rule, name, reason, source)
        if self._run.pass_name:
            self._run.result.declined.setdefault((rule, name, reason), record)
        else:
            self.report.declined.append(record)

    def insert(
        self,
        graph: Graph,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        *,
        like: Node,
    ) -> Node:
        """Create a node at the graph's insertion point with the metadata of `like` and its own fresh `meta["val"]`."""
        node = graph.call_function(target, args, kwargs)
        node.meta = {key: value for key, value in like.meta.items() if key not in ("val", "tensor_meta", "from_node")}
        node.meta["val"] = fake_value(node, self.fake_mode)
        self.vouch(node, node.meta["val"])
        self._run.touched.append(node)
        return node

    def vouch(self, node: Node, value: Any) -> None:
        """State that `value` is what the node, as it is now, computes on fake values: the manager need not."""
        self._run.vouched[node] = Vouched(node.target, node.args, node.kwargs, value)

    def hint(self, size: int | torch.SymInt, fallback: int = 1) -> int:
        """A likely value of a size, for estimates only; adds no guard."""
        return optimization_hint(size, fallback)

    def known(self, condition: bool | torch.SymBool) -> bool:
        """Whether a condition on sizes is proven true; adds no guard."""
        return statically_known_true(condition)

    def begin_pass(
        self, stage: str, name: str, blocked: dict[int, str], check: Callable[[Rewrite], None] | None
    ) -> PassResult:
        """For the manager: start a run of a pass. `check` is called when a rewrite is complete."""
        self._run = _Run(stage, name, blocked, check)
        return self._run.result

    def end_pass(self) -> None:
        """For the manager: no pass runs; refusals go to the report."""
        self._run = _Run()

    @property
    def vouched(self) -> dict[Node, Vouched]:
        """For the manager: values that need no second computing."""
        return self._run.vouched

    def finish_rewrite(self) -> None:
        """For the manager: the rewrite asked for last is complete; account for it and check it."""
        run = self._run
        record, run.open = run.open, None
        if record is None:
            return
        after = total_cost(node for node in dict.fromkeys(run.touched) if node.users)
        record.bytes_after, record.flops_after = after.bytes, after.flops
        if run.check is not None:
            run.check(record)


@dataclass(slots=True)
class _Run:
    """State of one run of one pass."""

    stage: str = ""
    pass_name: str = ""
    blocked: dict[int, str] = field(default_factory=dict)
    check: Callable[[Rewrite], None] | None = None
    result: PassResult = field(default_factory=PassResult)
    open: Rewrite | None = None
    touched: list[Node] = field(default_factory=list)
    vouched: dict[Node, Vouched] = field(default_factory=dict)


def source_line(node: Node) -> str:
    """The user's line that a node comes from, `path:line in function: text`, or `""`."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return ""
    start = trace.rfind('File "')
    head, _, rest = trace[start:].partition("\n")
    pieces = head.split('"')
    if len(pieces) < 3:
        return head.strip()
    where = pieces[2].removeprefix(", line ").replace(", in ", " in ")
    text = rest.strip().partition("\n")[0].strip()
    return f"{pieces[1]}:{where}: {text}" if text else f"{pieces[1]}:{where}"
