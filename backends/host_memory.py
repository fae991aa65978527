"""Memory of CPU tensors, kept between calls.

Large blocks that the C library gets from the system come as pages that do not exist yet: the first write to each costs
a fault, which takes many times as long as the write, on every call anew. So blocks of at least `KEPT_BYTES` that graphs
allocate are kept when the tensors in them die, and lent again. The pool never holds more than the most that its tensors
had in use at one time: what a program without it would have needed at its peak.

A block is free when its storage has no owner but the pool: tensors, views, autograd's saved tensors, arrays of NumPy
and storages held by the user are all owners. A storage that was resized or moved (to shared memory, say) leaves the
pool.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from math import prod

import torch

from optpass.torch_private import empty_strided_cpu, is_copy_on_write, reinterpret, storage_owners

#: Smaller tensors come from the C library, whose own pool serves them without faults.
KEPT_BYTES = 1 << 19


class _Block:
    """Some memory as a flat tensor of one dtype, and how its reference counts look when nobody else has it."""

    __slots__ = ("address", "bytes", "free_counts", "storage", "whole")

    def __init__(self, numel: int, dtype: torch.dtype) -> None:
        self.whole = empty_strided_cpu((numel,), (1,), dtype)
        self.storage = self.whole.untyped_storage()
        self.address, self.bytes = self.storage.data_ptr(), self.storage.nbytes()
        self.free_counts = self._counts()

    def _counts(self) -> tuple[int, int]:
        return storage_owners(self.storage), sys.getrefcount(self.storage)

    def is_free(self) -> bool:
        return self._counts() == self.free_counts

    def is_sound(self) -> bool:
        storage = self.storage
        return (
            storage.data_ptr() == self.address and storage.nbytes() == self.bytes and not is_copy_on_write(self.whole)
        )


class Pool:
    """Blocks by element count and dtype, each list in the order in which they were last lent. Safe with threads."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, torch.dtype], list[_Block]] = {}
        self._peak = 0
        self._lock = threading.Lock()

    def empty_strided(self, size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised CPU tensor with a storage of its own; ``strides`` must be those of a dense tensor."""
        numel = prod(size)
        if numel * dtype.itemsize < KEPT_BYTES:
            return empty_strided_cpu(size, strides, dtype)
        with self._lock:
            return reinterpret(self._lend(numel, dtype).whole, size, strides, 0)

    def release(self) -> None:
        with self._lock:
            self._evict(0)
            self._peak = self._in_use()

    def held_bytes(self) -> int:
        """Bytes in the pool, in use or not."""
        with self._lock:
            return sum(b.bytes for b in self._all())

    def _lend(self, numel: int, dtype: torch.dtype) -> _Block:
        blocks = self._blocks[numel, dtype] = self._blocks.pop((numel, dtype), [])  # now the last key
        # The block lent last is warm in the cache, and free where a chain of operators runs; the one lent first is free
        # where a forward pass keeps what it makes.
        for place in (*range(len(blocks) - 1, max(len(blocks) - 4, 0) - 1, -1), *range(max(len(blocks) - 4, 0))):
            block = blocks[place]
            if block.is_free():
                del blocks[place]
                if not block.is_sound():
                    return self._lend(numel, dtype)
                break
        else:
            self._make_room(numel * dtype.itemsize)
            blocks = self._blocks.setdefault((numel, dtype), [])
            block = _Block(numel, dtype)
        blocks.append(block)
        return block

    def _make_room(self, wanted: int) -> None:
        self._peak = max(self._peak, self._in_use() + wanted)
        self._evict(self._peak - wanted)

    def _in_use(self) -> int:
        return sum(b.bytes for b in self._all() if not b.is_free())

    def _evict(self, limit: int) -> None:
        """Drops free blocks, sizes that were asked for longest ago first, until at most ``limit`` bytes are held."""
        excess = sum(b.bytes for b in self._all()) - limit
        for key in list(self._blocks):
            kept = []
            for block in self._blocks[key]:
                if excess > 0 and block.is_free():
                    excess -= block.bytes
                else:
                    kept.append(block)
            if kept:
                self._blocks[key] = kept
            else:
                del self._blocks[key]

    def _all(self) -> Iterator[_Block]:
        for blocks in self._blocks.values():
            yield from blocks

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


pool = Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool._after_fork)


def release_memory() -> None:
    """Gives CPU memory that compiled graphs keep for their next calls back to the C library.

    Tensors that are alive are not touched. What is kept never exceeds the most that results and intermediates of
    compiled graphs had in use at one time; call this when a phase of a program that needed much memory is over.
    """
    pool.release()
