"""The process in which printed Triton kernels run on CPU tensors, under Triton's interpreter.

Started by `triton_check` as ``python -m optpass.testing.triton_worker`` with ``TRITON_INTERPRET=1``. The interpreter of
Triton 3.6 to 3.8 converts narrow floats wrongly, mislabels comparisons, has no libdevice and folds with combine
functions element by element; the patches below put PyTorch's functions in those places.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

_DTYPES = {
    tl.float16: torch.float16, tl.bfloat16: torch.bfloat16, tl.float32: torch.float32, tl.float64: torch.float64,
    tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2,
}  # fmt: skip
_INTEGERS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_binary_op = interpreter.InterpreterBuilder.binary_op


def _to_torch(data: np.ndarray, dtype) -> torch.Tensor:
    bits = np.ascontiguousarray(data).view(_INTEGERS[data.itemsize])
    return torch.from_numpy(bits).view(_DTYPES[dtype])


def _to_numpy(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    return tensor.view(getattr(torch, f"int{8 * tensor.element_size()}")).numpy().view(dtype)


def _cast(self, source, to):
    old, new, numpy_type = source.dtype.scalar, to.scalar, interpreter._get_np_dtype(to)
    if old in _DTYPES and new in _DTYPES:
        data = _to_numpy(_to_torch(source.data, old).to(_DTYPES[new]), numpy_type)
    else:
        data = source.data.astype(numpy_type)
    return interpreter.TensorHandle(data, new)


def _binary(self, left, right, function):
    handle = _binary_op(self, left, right, function)
    # The interpreter labels a comparison with the dtype that it compared; spread, the scalar 1.0 < 2.0 would be floats.
    return interpreter.TensorHandle(handle.data, tl.int1) if handle.data.dtype == bool else handle


def _fold(self, blocks):
    """A tree over the axis, one array operation a level, as the device folds."""
    data = [np.moveaxis(b.handle.data, self.axis, 0) for b in blocks]
    dtypes = [b.dtype.scalar for b in blocks]
    while len(data[0]) > 1:
        half = len(data[0]) // 2
        low, high = ([self.to_tensor(d[part], t) for d, t in zip(data, dtypes)] for part in
                     (slice(None, half), slice(half, None)))  # fmt: skip
        joined = self.combine_fn.fn(*low, *high)
        data = [j.handle.data for j in (joined if isinstance(joined, tuple) else (joined,))]
    place = (lambda d: np.moveaxis(d, 0, self.axis)) if self.keep_dims else lambda d: d[0]
    return [self.to_tensor(place(d), t) for d, t in zip(data, dtypes)]


def _libdevice(function):
    def call(*blocks):
        values = torch.broadcast_tensors(*(_to_torch(b.handle.data, b.dtype.scalar) for b in blocks))
        widest = max(blocks, key=lambda b: b.handle.data.size)
        data = _to_numpy(function(*values).contiguous(), widest.handle.data.dtype)
        return tl.tensor(interpreter.TensorHandle(data, widest.dtype.scalar), widest.type)

    return call


def _patch() -> None:
    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_index(tensor, scope):
        patch_tensor(tensor, scope)
        # Triton 3.6 converts an array of one element, which NumPy 2.4 refuses.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor_index
    builder = interpreter.InterpreterBuilder
    builder.binary_op = _binary
    builder.cast_impl = _cast
    builder.create_fp_to_fp = lambda self, source, to, rounding: _cast(self, source, to)
    builder.get_all_ones_value = _all_ones
    interpreter.ReduceOps.generic_reduce = _fold
    # Only debug mode keeps device assertions; its overflow checks would reject arithmetic that wraps.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)
    names = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    names += "trunc pow fmod atan2 copysign"
    for name in names.split():
        setattr(libdevice, name, _libdevice(getattr(torch, name)))
    libdevice.nearbyint = _libdevice(torch.round)


def _all_ones(self, kind):
    return interpreter.TensorHandle(~np.zeros(1, dtype=interpreter._get_np_dtype(kind)), kind.scalar)


def _double(value: float):
    return tl.tensor(interpreter.TensorHandle(np.array([value]), tl.float64), tl.float64)


def _run(path: str, name: str, programs: int, memory: list[tuple], values: list) -> list[torch.Tensor]:
    spec = importlib.util.spec_from_file_location(f"{name}_{hash(path)}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pointers = [b[o * t.itemsize :].view(t) for b, t, o in memory]
    values = [_double(v) if isinstance(v, float) else v for v in values]
    getattr(module, name)[(programs,)](*pointers, *values)
    return [b for b, _, _ in memory]


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _patch()
    np.seterr(all="ignore")
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (_run(*request), None)
        except Exception as e:
            answer = (None, f"{e}\n{traceback.format_exc()}")
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
