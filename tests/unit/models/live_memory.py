"""Counts the bytes that tensors hold while a function runs.

What the allocator and the operating system report depends on the machine and on what ran before; this is the
same everywhere. Space that a kernel uses inside one operation is not seen.
"""

import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    """Follows the storages that operations return, until they are freed."""

    def __init__(self):
        super().__init__()
        self.known = weakref.WeakValueDictionary()
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves(args) if torch.is_tensor(leaf)}
        for leaf in tree_leaves(results):
            if not torch.is_tensor(leaf):
                continue
            storage = leaf.untyped_storage()
            # An operation may return what it was given, or a view of it.
            if storage._cdata in given or storage._cdata in self.known:
                continue
            self.known[storage._cdata] = storage
            weakref.finalize(storage, self.free, storage.nbytes())
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
        return results

    def free(self, num_bytes):
        self.now -= num_bytes


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes that tensors made by ``run`` held at the same time."""
    watch = _Watch()
    with watch:
        run()
    return watch.peak
