# SPDX-License-Identifier: Apache-2.0
"""Datasets for tests whose every byte follows from the sample's number, so that any test can check them."""

import numpy as np

MIB = 1 << 20


def rows(numbers, words=1024):
    """Samples of 8 * words bytes: no two alike, and none alike to one of its neighbours shifted."""
    n = np.asarray(numbers, np.uint64).reshape(-1, 1)
    return (n << np.uint64(32)) ^ (np.arange(words, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (n * n)


def make_npy(path, samples, words=1024):
    """samples * words * 8 bytes in a .npy file."""
    made = np.lib.format.open_memmap(path, "w+", np.uint64, (samples, words))
    for at in range(0, samples, 4096):
        end = min(at + 4096, samples)
        made[at:end] = rows(range(at, end), words)
    made.flush()
    del made
    return path


def make_files(folder, count, size=4096):
    """`count` files of about `size` bytes, in folders of 100; {key: bytes}."""
    made = {}
    for i in range(count):
        key = f"c{i // 100:03d}/{i:05d}.bin"
        made[key] = rows([i], -(-(size + i % 7) // 8)).tobytes()[: size + i % 7]
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made[key])
    return made


def check_rows(array, numbers, words=1024):
    np.testing.assert_array_equal(np.asarray(array), rows(numbers, words))


#: The same functions, for the code of a client process.
CLIENT = """
def rows(numbers, words=1024):
    n = np.asarray(numbers, np.uint64).reshape(-1, 1)
    return (n << np.uint64(32)) ^ (np.arange(words, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (n * n)
"""
