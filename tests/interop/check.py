#!/usr/bin/env python3
"""Exchanges tensors with NumPy or PyTorch by DLPack, without a copy, in both directions.

    tests/interop/check.py LIBRARY [numpy|torch]

LIBRARY is the example `interop` of burn-rocm-tests (target/release/examples/libinterop.so). NumPy shares the memory of
the CPU device (BURN_ROCM_PROVIDER=cpu), PyTorch that of the CPU device, of an NVIDIA GPU (cuda) or of an AMD GPU
(rocm). NumPy must be at least 2.1, PyTorch 1.13. Without the package, the script says so and ends with 77.
"""
import contextlib
import ctypes
import gc
import sys
import weakref

CPU, CUDA, ROCM = 1, 2, 10
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}

lib = ctypes.CDLL(sys.argv[1])
pointer, size, number, boolean = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_bool
for name, result, arguments in [
    ("interop_error", ctypes.c_char_p, []),
    ("interop_device", pointer, [pointer]),
    ("interop_range", pointer, [pointer, size]),
    ("interop_import", pointer, [pointer, boolean]),
    ("interop_export", pointer, [pointer, number, boolean]),
    ("interop_axpx", pointer, [pointer, ctypes.c_double]),
    ("interop_swapped", pointer, [pointer]),
    ("interop_write", boolean, [pointer, pointer]),
    ("interop_free", None, [pointer]),
    ("interop_sync", boolean, []),
]:
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments
python = ctypes.pythonapi
python.PyCapsule_New.restype, python.PyCapsule_New.argtypes = ctypes.py_object, [pointer, ctypes.c_char_p, pointer]
python.PyCapsule_GetPointer.restype = pointer
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def made(handle):
    if not handle:
        raise ValueError(lib.interop_error().decode())
    return handle


device = (ctypes.c_int32 * 2)()
stream = lib.interop_device(device)
device = tuple(device)


class Tensor:
    """A tensor of this backend."""

    def __init__(self, handle):
        self.handle = made(handle)

    def __del__(self):
        if hasattr(self, "handle"):
            lib.interop_free(self.handle)

    @staticmethod
    def range(*shape):
        return Tensor(lib.interop_range((size * len(shape))(*shape), len(shape)))

    @staticmethod
    def of(source, version=(1, 1)):
        """Shares the memory of another library's tensor."""
        arguments = {} if version is None else {"max_version": version}
        # NumPy takes no stream.
        if source.__dlpack_device__()[0] != CPU:
            arguments["stream"] = stream
        try:
            capsule = source.__dlpack__(**arguments)
        except TypeError:  # before DLPack 1.0
            arguments.pop("max_version", None)
            capsule = source.__dlpack__(**arguments)
        for name in VERSIONED, LEGACY:
            if python.PyCapsule_IsValid(capsule, name):
                managed = python.PyCapsule_GetPointer(capsule, name)
                own = Tensor(lib.interop_import(managed, name == VERSIONED))
                python.PyCapsule_SetName(capsule, USED[name])
                own.capsule = name
                return own
        raise ValueError("a capsule of an unknown name")

    def __dlpack_device__(self):
        return device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked = max_version
        name = LEGACY if max_version is None or max_version[0] < 1 else VERSIONED
        managed = made(lib.interop_export(self.handle, -2 if stream is None else stream, name == VERSIONED))
        return python.PyCapsule_New(managed, name, None)

    def axpx(self, by):
        return Tensor(lib.interop_axpx(self.handle, by))

    def swapped(self):
        return Tensor(lib.interop_swapped(self.handle))

    def write(self, value):
        if not lib.interop_write(self.handle, value.handle):
            raise ValueError(lib.interop_error().decode())


class Legacy:
    """A tensor whose `__dlpack__` knows no versions."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return device

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)


def refused(text, body):
    try:
        body()
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError("nothing was refused; expected: " + text)


def sync():
    gc.collect()
    assert lib.interop_sync(), lib.interop_error().decode()


def check_numpy(np):
    assert device == (CPU, 0), f"NumPy can't access the memory of device {device}"
    # Out: NumPy sees the memory, with strides.
    own = Tensor.range(3, 4)
    array = np.from_dlpack(own)
    assert own.asked is not None and array.dtype == np.float32
    assert np.array_equal(array, np.arange(12, dtype=np.float32).reshape(3, 4))
    assert np.shares_memory(array, np.from_dlpack(Legacy(own)))
    view = np.from_dlpack(own.swapped())
    assert view.strides == (4, 16) and np.array_equal(view, array.T) and np.shares_memory(view, array)
    address = array.__array_interface__["data"][0]
    del own
    sync()
    assert np.array_equal(array, np.arange(12, dtype=np.float32).reshape(3, 4)), "it outlives the tensor"
    # A result of ops.
    result = np.from_dlpack(Tensor.range(2, 5).axpx(0.5))
    assert np.array_equal(result, np.arange(10, dtype=np.float32).reshape(2, 5) * 1.5)
    del array, view, result
    sync()
    # In: this backend sees the memory of arrays, of each dtype and stride.
    base = np.random.default_rng().integers(0, 100, (6, 8))
    types = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    views = [base, base.T, base[1:, 3:], base[::2, ::-1], base[::-3, 1::2], base[:0], base[0]]
    views.append(base[2:3, 2:3].reshape(()))
    for kind in types:
        for shape in views:
            # As in `base`, so that the strides stay.
            source = np.zeros((6, 8), kind)
            source[...] = base
            offset = shape.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            strides = tuple(by // base.itemsize * source.itemsize for by in shape.strides)
            buffer_offset = offset // base.itemsize * source.itemsize
            array = np.ndarray(shape.shape, kind, source, buffer_offset, strides)
            for version in (1, 1), None:
                own = Tensor.of(array, version)
                assert own.capsule == (LEGACY if version is None else VERSIONED)
                back = np.from_dlpack(own)
                assert back.dtype == array.dtype and np.array_equal(back, array), (kind, shape.strides)
                same = all(by >= 0 for by in array.strides) and array.size > 0
                assert np.shares_memory(back, array) == same, (kind, shape.strides)
    # Ops on them, and no write.
    source = np.random.default_rng().standard_normal((64, 33)).astype(np.float32)
    for array in source, source.T, source[1:, 1:], source[:, ::-1], source[3]:
        before = array.copy()
        result = np.from_dlpack(Tensor.of(array).axpx(2.0))
        assert np.allclose(result, array * 3, rtol=1e-6, atol=1e-6)
        assert np.array_equal(array, before)
    # Writes on request.
    target = np.zeros((2, 3), np.float32)
    Tensor.of(target).write(Tensor.range(2, 3))
    sync()
    assert np.array_equal(target, np.arange(6, dtype=np.float32).reshape(2, 3))
    target.flags.writeable = False
    shared = Tensor.of(target)
    refused("read-only", lambda: shared.write(Tensor.range(2, 3)))
    assert not np.from_dlpack(shared).flags.writeable
    # An array stays as long as tensors need it, and no longer.
    array = np.ones(1000, np.float32)
    died = weakref.ref(array)
    shared = Tensor.of(array)
    computed = shared.axpx(1.0)
    del array
    sync()
    assert died() is not None
    del shared
    sync()
    assert died() is None, "the array is kept"
    assert np.array_equal(np.from_dlpack(computed), np.full(1000, 2, np.float32))
    # What does not fit.
    refused("dtype", lambda: Tensor.of(np.zeros(3, np.complex64)))
    raw = np.zeros(17, np.uint8)
    refused("address", lambda: Tensor.of(raw[1:].view(np.float32)))


def check_torch(torch):
    name = {CPU: "cpu", CUDA: f"cuda:{device[1]}", ROCM: f"cuda:{device[1]}"}[device[0]]
    print(f"PyTorch {torch.__version__} on {name}")
    # Out.
    own = Tensor.range(3, 4)
    tensor = torch.from_dlpack(own)
    assert str(tensor.device) == name and tensor.dtype == torch.float32
    expected = torch.arange(12, dtype=torch.float32, device=name).reshape(3, 4)
    assert torch.equal(tensor, expected)
    view = torch.from_dlpack(own.swapped())
    assert view.stride() == (1, 4) and torch.equal(view, expected.T) and view.data_ptr() == tensor.data_ptr()
    assert torch.equal(torch.utils.dlpack.from_dlpack(own.__dlpack__()), expected)
    del own
    sync()
    assert torch.equal(tensor, expected), "it outlives the tensor"
    del tensor, view
    sync()
    # In, of each dtype and stride.
    base = torch.randint(0, 100, (6, 8), device=name)
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8".split()
    if not torch.__version__.startswith("1."):  # which exports no bools
        names.append("bool")
    for kind in names:
        source = base.to(getattr(torch, kind))
        for view in source, source.T, source[1:, 3:], source[::2], source[:0], source[2, 2], source[0].expand(3, 8):
            for version in (1, 1), None:
                shared = Tensor.of(view, version)
                back = torch.from_dlpack(shared)
                assert back.dtype == view.dtype and torch.equal(back, view), (kind, view.stride())
                assert back.numel() == 0 or back.data_ptr() == view.data_ptr()
    capsule = torch.utils.dlpack.to_dlpack(base.float())
    assert python.PyCapsule_IsValid(capsule, LEGACY)
    shared = Tensor(lib.interop_import(python.PyCapsule_GetPointer(capsule, LEGACY), False))
    python.PyCapsule_SetName(capsule, USED[LEGACY])
    assert torch.equal(torch.from_dlpack(shared), base.float())
    # Work in both libraries' streams, with memory that both reuse. No call waits for the device.
    other = torch.cuda.Stream() if device[0] != CPU else None
    for round in range(200):
        with torch.cuda.stream(other if round % 2 else None) if other is not None else contextlib.nullcontext():
            x = torch.randn(257, 1023, device=name)
            y = torch.sin(x @ x.T @ x)
            twice = torch.from_dlpack(Tensor.of(y).axpx(1.0))
            z = twice - y
            del twice
            error = (z - y).abs().max().item()
        assert error == 0, f"round {round}: {error}"
    # Writes on request.
    target = torch.zeros(2, 3, device=name)
    Tensor.of(target).write(Tensor.range(2, 3))
    sync()
    assert torch.equal(target, torch.arange(6, dtype=torch.float32, device=name).reshape(2, 3))
    refused("dtype", lambda: Tensor.of(torch.zeros(3, dtype=torch.complex64, device=name)))
    if device[0] != CPU:
        refused("memory of", lambda: Tensor.of(torch.zeros(3)))
        # The memory goes back to PyTorch.
        del base, source, view, back, shared, x, y, z, target
        sync()
        before = torch.cuda.memory_allocated()
        x = torch.ones(1 << 20, device=name)
        shared = Tensor.of(x)
        del x
        sync()
        assert torch.cuda.memory_allocated() >= before + (4 << 20)
        del shared
        sync()
        assert torch.cuda.memory_allocated() == before


package = sys.argv[2] if len(sys.argv) > 2 else "numpy"
try:
    module = __import__(package)
except ModuleNotFoundError:
    print(f"skipped: Python has no {package}")
    sys.exit(77)
{"numpy": check_numpy, "torch": check_torch}[package](module)
sync()
print(f"{package} {module.__version__}: memory is shared in both directions on device {device}")
