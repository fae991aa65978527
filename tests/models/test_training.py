"""What a training script leans on: random masks, buffers, modes, graph breaks, changing sizes, threads, processes."""

from __future__ import annotations

import copy
import io
import os
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(fn, **kwargs):
    return torch.compile(fn, backend="optpass", **kwargs)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


class TestDropout:
    def test_mask_rate_and_scale(self):
        out = compiled(lambda x: F.dropout(x * 1.5, 0.3))(torch.ones(200, 500))
        kept = out != 0
        # 100,000 draws: five standard deviations of the rate.
        assert abs(kept.float().mean() - 0.7) < 5 * (0.21 / 1e5) ** 0.5
        same(out[kept], torch.full_like(out[kept], 1.5 / 0.7))
        columns = kept.float().mean(0)
        assert (columns - 0.7).abs().max() < 6 * (0.21 / 200) ** 0.5  # no column is masked as a whole

    def test_forward_and_backward_use_one_mask(self):
        x = torch.randn(50, 70, requires_grad=True)
        out = compiled(lambda x: F.dropout(x.exp(), 0.5))(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        same(grad, out.detach())  # d exp = exp, with the same mask and scale

    def test_seeds(self):
        fn, x = compiled(lambda x: F.dropout(x, 0.5)), torch.ones(300)
        torch.manual_seed(5)
        a, b = fn(x), fn(x)
        torch.manual_seed(5)
        assert torch.equal(fn(x), a) and not torch.equal(a, b)

    def test_two_masks_in_one_graph_differ(self):
        a, b = compiled(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)))(torch.ones(300))
        assert not torch.equal(a, b)

    def test_eager_parity_draws_eagers_numbers(self):
        def fn(x):
            return F.dropout(x, 0.5) + torch.rand_like(x)

        x = torch.ones(300)
        torch.manual_seed(5)
        expected = fn(x)
        torch.manual_seed(5)
        same(compiled(fn, options={"parity": "eager"})(x), expected)

    def test_off_in_evaluation(self):
        layer = nn.Dropout(0.5).eval()
        x = torch.randn(9)
        assert torch.equal(compiled(lambda x: layer(x) + 0)(x), x)


def test_batch_norm_updates_its_buffers():
    eager = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    ours = copy.deepcopy(eager)
    fn = compiled(ours)
    for _ in range(3):
        x = torch.randn(4, 3, 9, 9)
        same(fn(x), eager(x))
    for a, b in zip(ours.buffers(), eager.buffers()):
        same(a, b)
    same(compiled(ours.eval())(x), eager.eval()(x))


def test_a_cache_is_written_in_place():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(2, 8, 4))

        def forward(self, x, at):
            self.cache.index_copy_(1, at, x)
            return (self.cache * 2).sum(1)

    ours, eager = Cached(), Cached()
    fn, memory = compiled(ours), ours.cache.data_ptr()
    with torch.no_grad():
        for k in range(3):
            x, at = torch.randn(2, 1, 4), torch.tensor([k])
            same(fn(x, at), eager(x, at))
    same(ours.cache, eager.cache)
    assert ours.cache.data_ptr() == memory


def test_no_grad_and_inference_mode():
    layer = nn.Linear(5, 7)
    fn, x = compiled(lambda x: F.gelu(layer(x))), torch.randn(3, 5)
    with torch.no_grad():
        assert not fn(x).requires_grad
    with torch.inference_mode():
        same(fn(x), F.gelu(layer(x)))
    assert fn(x).requires_grad


def test_graph_breaks():
    def fn(x):
        y = x.sin().t()
        torch._dynamo.graph_break()
        return y.contiguous().view(-1) * 2, y.add_(1)

    x = torch.randn(4, 6)
    same(compiled(fn)(x.clone()), fn(x.clone()))


@pytest.mark.parametrize("mark", [False, True])
def test_no_more_recompilations_than_another_backend(mark):
    def frames(backend):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend(backend)
        eager = lambda x: (x.softmax(-1) @ x.t()).reshape(-1)
        fn = torch.compile(eager, backend=counter, dynamic=None if mark else True)
        for n in (4, 7, 9, 16, 33):
            x = torch.randn(n, 5)
            if mark:
                torch._dynamo.mark_dynamic(x, 0)
            same(fn(x), eager(x))
        return counter.frame_count

    assert frames("optpass") == frames("aot_eager")


def test_sizes_that_change_in_training():
    layer = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    twin = copy.deepcopy(layer)
    fn = compiled(layer, dynamic=True)
    for n in (5, 3, 8, 1, 2):
        x = torch.randn(n, 6)
        fn(x).square().sum().backward()
        twin(x).square().sum().backward()
    for a, b in zip(layer.parameters(), twin.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_threads_compile_at_once():
    results: dict[int, torch.Tensor] = {}
    errors: list[Exception] = []
    x = torch.randn(6, 7)

    def work(k):
        try:
            results[k] = compiled(lambda x: (x * (k + 1)).softmax(-1) + k)(x)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for k in range(4):
        same(results[k], (x * (k + 1)).softmax(-1) + k)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_runs_and_compiles():
    fn, x = compiled(lambda x: x.sin().sum(-1)), torch.randn(6, 7)
    fn(x)
    child = os.fork()
    if child == 0:
        ok = torch.allclose(fn(x), x.sin().sum(-1)) and torch.allclose(compiled(lambda x: x.cos() * 3)(x), x.cos() * 3)
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_copies_and_saved_weights():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    fn, x = compiled(model), torch.randn(3, 5)
    expected = fn(x)
    same(copy.deepcopy(fn)(x), expected)
    file = io.BytesIO()
    torch.save(fn.state_dict(), file)
    file.seek(0)
    other = compiled(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)))
    other.load_state_dict(torch.load(file))
    same(other(x), expected)


def test_the_optimiser_changes_what_is_computed():
    model = nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    fn = compiled(model)
    for m, f in ((model, fn), (twin, twin)):
        optimiser = torch.optim.AdamW(m.parameters(), 0.1)
        torch.manual_seed(1)
        for _ in range(4):
            optimiser.zero_grad()
            f(torch.randn(3, 4)).square().sum().backward()
            optimiser.step()
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
