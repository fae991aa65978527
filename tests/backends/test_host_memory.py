"""Kept memory: lent only when nobody else has it, and never more than was in use at one time."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

import optpass
from optpass.backends.host_memory import KEPT_BYTES, Pool

pytestmark = pytest.mark.null

COUNT = KEPT_BYTES // 4


@pytest.fixture
def pool() -> Pool:
    return Pool()


def lend(pool: Pool, count: int = COUNT, dtype: torch.dtype = torch.float32) -> Tensor:
    return pool.empty_strided((count,), (1,), dtype)


def test_memory_of_a_dead_tensor_is_lent_again(pool):
    first = pool.empty_strided((COUNT // 8, 8), (1, COUNT // 8), torch.float32)
    assert first.shape == (COUNT // 8, 8) and first.stride() == (1, COUNT // 8)
    assert first.untyped_storage().nbytes() == KEPT_BYTES and first._base is None and not first.is_inference()
    address = first.data_ptr()
    del first
    assert lend(pool).data_ptr() == address
    assert pool.held_bytes() == KEPT_BYTES


def test_small_and_empty_tensors_are_not_kept(pool):
    lend(pool, COUNT - 1)
    assert lend(pool, 0).numel() == 0
    assert pool.held_bytes() == 0


HOLDERS = {
    "tensor": lambda x: x,
    "view": lambda x: x[5:7],
    "detached": lambda x: x.detach(),
    "array": lambda x: x.numpy(),
    "storage": lambda x: x.untyped_storage(),
    "typed storage": lambda x: x.storage(),
    "memory view": lambda x: memoryview(x.numpy()),
    "capsule": lambda x: torch.utils.dlpack.to_dlpack(x),
    "saved by autograd": lambda x: x.requires_grad_().exp(),
    "gradient": lambda x: setattr(y := torch.zeros_like(x), "grad", x) or y,
    "lazy copy": lambda x: torch._lazy_clone(x),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_held_memory_is_not_lent(pool, hold):
    lent = lend(pool)
    address = lent.data_ptr()
    held = hold(lent)
    del lent
    others = [lend(pool) for _ in range(3)]
    assert all(o.data_ptr() != address for o in others)
    del held, others
    for _ in range(5):
        lend(pool)


def test_a_resized_storage_leaves_the_pool(pool):
    lent = lend(pool)
    lent.untyped_storage().resize_(0)
    del lent
    assert lend(pool).fill_(1.0).sum() == COUNT


def test_a_storage_moved_to_shared_memory_leaves_the_pool(pool):
    lent = lend(pool)
    lent.share_memory_()
    address = lent.data_ptr()
    del lent
    again = lend(pool)
    assert again.data_ptr() != address and not again.is_shared()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("lent", [True, False])
def test_inference_mode_marks_the_tensor_not_the_memory(pool, made, lent):
    with torch.inference_mode(made):
        address = lend(pool).data_ptr()
    with torch.inference_mode(lent):
        x = lend(pool)
    assert x.data_ptr() == address and x.is_inference() is lent


def test_never_more_than_was_in_use_at_one_time(pool):
    for k in range(1, 20):
        lend(pool, COUNT + 64 * k)
    assert pool.held_bytes() <= KEPT_BYTES + 4 * 64 * 19
    both = [lend(pool), lend(pool)]
    assert pool.held_bytes() == 2 * KEPT_BYTES
    del both
    one = lend(pool, 2 * COUNT)
    assert pool.held_bytes() == 2 * KEPT_BYTES
    pool.release()
    assert pool.held_bytes() == 2 * KEPT_BYTES and one.fill_(1.0).all()
    del one
    pool.release()
    assert pool.held_bytes() == 0


def test_threads_get_memory_of_their_own(pool):
    failures = []

    def work(number: int) -> None:
        for _ in range(200):
            x = lend(pool).fill_(number)
            if not bool((x[::4096] == number).all()):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@pytest.mark.cpu
def test_results_of_calls_do_not_share_memory():
    scale = torch.compile(lambda x: (x * 2, x + 1), backend="optpass")
    x = torch.arange(float(COUNT))
    first = scale(x)
    second = scale(x + 1)
    assert torch.equal(first[0], x * 2) and torch.equal(first[1], x + 1)
    assert torch.equal(second[0], x * 2 + 2)
    addresses = {t.data_ptr() for t in first}
    del first
    assert {t.data_ptr() for t in scale(x)} == addresses
    optpass.release_memory()
    assert torch.equal(second[1], x + 2)
