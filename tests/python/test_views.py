# SPDX-License-Identifier: Apache-2.0
"""Views: zero copy, read-only, leased; DLPack with the read-only flag or not at all."""

import ctypes
import gc

import numpy as np
import pytest

import leat
from lib_python import FILES, IMAGES


def test_zero_copy_and_read_only(ws):
    view = ws.view(1)
    a, b = view.array, np.asarray(view)
    np.testing.assert_array_equal(a, IMAGES[1])
    np.testing.assert_array_equal(b, IMAGES[1])
    assert a.ctypes.data == b.ctypes.data == ws.view(1).array.ctypes.data
    assert view.shape == (2, 3) and view.dtype == np.float32 and len(view) == 2 and view.nbytes == 24
    for array in (a, b):
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True
    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_char * 24).from_buffer(view)
    memory = memoryview(view)
    assert memory.readonly and memory.shape == (2, 3) and memory.format in ("f", "<f")
    assert view.tobytes() == IMAGES[1].tobytes()


def test_raw_files(files):
    for key, data in FILES.items():
        with files.view(key) as view:
            assert view.tobytes() == bytes(memoryview(view)) == view.array.tobytes() == data


def test_which_field(npy):
    with leat.open({"image": npy, "label": npy.parent / "labels.npy"}) as ws:
        with pytest.raises(ValueError, match="image, label"):
            ws.view(0)
        assert ws.view(5, "label").array == 2
        with pytest.raises(KeyError):
            ws.view(0, "png")


def test_release(ws):
    view = ws.view(0)
    kept = view.array
    view.release()
    view.release()
    assert view.released and "released" in repr(view)
    with pytest.raises(ValueError, match="released"):
        view.array
    with pytest.raises(BufferError, match="released"):
        memoryview(view)
    np.testing.assert_array_equal(kept, IMAGES[0])  # the array itself keeps the lease


def test_outlives_the_working_set(npy):
    ws = leat.open(npy)
    view, array = ws.view(3), ws.view(4).array
    ws.close()
    del ws
    gc.collect()
    np.testing.assert_array_equal(view.array, IMAGES[3])
    np.testing.assert_array_equal(array, IMAGES[4])


def test_a_lease_holds_a_drop_back(npy):
    ws = leat.preload(npy, name="held")
    array = ws.view(0).array
    ws.close()
    with pytest.raises(leat.Busy):
        leat.drop("held", timeout=0.3)
    np.testing.assert_array_equal(array, IMAGES[0])
    del array
    leat.drop("held", timeout=10)


# --- DLPack: a consumer written out, because NumPy 1.24 asks for legacy capsules -----------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor_versioned"


def consume(capsule):
    assert api.PyCapsule_IsValid(capsule, b"dltensor_versioned")
    managed = Versioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
    api.PyCapsule_SetName(capsule, USED)
    return managed


def test_dlpack_versioned_says_read_only(ws):
    view = ws.view(2)
    address = view.array.ctypes.data
    assert view.__dlpack_device__() == (1, 0)
    managed = consume(view.__dlpack__(max_version=(1, 0)))
    holder = view.holder
    view.release()
    del view
    gc.collect()
    tensor = managed.tensor
    assert (managed.major, managed.flags) == (1, 1)
    assert tensor.data + tensor.byte_offset == address and (tensor.device_type, tensor.device_id) == (1, 0)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (2, 32, 1, 2)
    assert tensor.shape[:2] == [2, 3] and tensor.strides[:2] == [3, 1]
    values = (ctypes.c_float * 6).from_address(tensor.data)
    np.testing.assert_array_equal(values, IMAGES[2].reshape(-1))
    assert holder.released
    managed.deleter(ctypes.addressof(managed))


def test_dlpack_deleter_ends_the_lease(npy):
    ws = leat.preload(npy, name="leased")
    view = ws.view(0)
    managed = consume(view.__dlpack__(max_version=(1, 1)))
    del view
    ws.close()
    with pytest.raises(leat.Busy):
        leat.drop("leased", timeout=0.3)
    managed.deleter(ctypes.addressof(managed))
    leat.drop("leased", timeout=10)


def test_dlpack_capsule_nobody_took(npy):
    ws = leat.preload(npy, name="leased")
    capsule = ws.view(0).__dlpack__(max_version=(1, 0))
    ws.close()
    del capsule
    leat.drop("leased", timeout=10)


@pytest.mark.parametrize("max_version", [None, (0, 8)])
def test_dlpack_legacy_consumers_are_refused(ws, max_version):
    view = ws.view(0)
    with pytest.raises(BufferError, match="read-only.*copy"):
        view.__dlpack__(max_version=max_version)
    capsule = view.__dlpack__(max_version=max_version, copy=True)
    assert api.PyCapsule_IsValid(capsule, b"dltensor")


def test_numpy_cannot_write_through_dlpack(ws):
    view = ws.view(0)
    try:
        array = np.from_dlpack(view)
    except BufferError:
        return  # NumPy before 2.1 asks without a version
    assert not array.flags.writeable


def test_dlpack_copy(ws):
    managed = consume(ws.view(1).__dlpack__(max_version=(1, 0), copy=True))
    assert managed.flags == 2
    values = (ctypes.c_float * 6).from_address(managed.tensor.data)
    values[0] = 99
    assert values[1] == IMAGES[1, 0, 1]
    managed.deleter(ctypes.addressof(managed))
    np.testing.assert_array_equal(ws[1], IMAGES[1])


def test_dlpack_other_refusals(ws, tmp_path):
    view = ws.view(0)
    with pytest.raises(BufferError, match="stream"):
        view.__dlpack__(stream=1, max_version=(1, 0))
    with pytest.raises(BufferError, match="device"):
        view.__dlpack__(dl_device=(2, 0), max_version=(1, 0))
    np.save(tmp_path / "s.npy", np.array(["abc", "def"]))
    with leat.open(tmp_path / "s.npy") as strings, pytest.raises(BufferError, match="<U3"):
        strings.view(0).__dlpack__(max_version=(1, 0))


def test_dlpack_of_batches_is_writable(ws):
    with ws.read_batch([1, 2]) as batch:
        array = np.from_dlpack(batch["image"])
        assert array.ctypes.data == batch["image"].ctypes.data
        np.testing.assert_array_equal(array, IMAGES[1:3])
