# SPDX-License-Identifier: Apache-2.0
"""Values inside dicts and tuples that a transform returns: as named leaves, which have places in a slot, and put together again.

A tree is the name of a leaf, or a dict or tuple of trees. Containers of text and Python's own numbers alone are values, as metadata is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Union

import numpy as np

Tree = Union[str, "dict[Any, Tree]", "tuple[Tree, ...]"]


def tree_with_leaves(name: str, value: Any) -> Tree:
    """As `tree_of` makes it of a batch's values, whatever the leaves are."""
    return _tree(name, value)


def _has_array(value: Any) -> bool:
    if isinstance(value, (dict, tuple)):
        return any(map(_has_array, value.values() if isinstance(value, dict) else value))
    return isinstance(value, np.generic) or hasattr(value, "__array__")


def tree_of(name: str, value: Any) -> Tree:
    """
    >>> tree_of("boxes", {"at": np.zeros(4), "of": (np.ones(2), 3)})
    {'at': 'boxes.at', 'of': ('boxes.of.0', 'boxes.of.1')}
    >>> tree_of("meta", {"width": 640})
    'meta'
    """
    return _tree(name, value) if _has_array(value) else name


def _tree(name: str, value: Any) -> Tree:
    if isinstance(value, dict):
        return {key: _tree(f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [_tree(f"{name}.{i}", part) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return name


def leaves(tree: Tree, value: Any) -> Iterator[tuple[str, Any]]:
    """
    >>> list(leaves(("x.0", {"a": "x.1.a"}), (1, {"a": 2})))
    [('x.0', 1), ('x.1.a', 2)]
    """
    if isinstance(tree, str):
        yield tree, value
        return
    if isinstance(tree, dict):
        if not isinstance(value, dict) or value.keys() != tree.keys():
            raise ValueError(f"{_words(value)} where those before had {_words(tree)}")
        for key, part in tree.items():
            yield from leaves(part, value[key])
        return
    if not isinstance(value, tuple) or len(value) != len(tree):
        raise ValueError(f"{_words(value)} where those before had {_words(tree)}")
    for part, one in zip(tree, value):
        yield from leaves(part, one)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value))}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


def build(tree: Tree, get: Callable[[str], Any]) -> Any:
    """
    >>> build({"a": "x.a", "b": ("x.b.0",)}, str.upper)
    {'a': 'X.A', 'b': ('X.B.0',)}
    """
    if isinstance(tree, str):
        return get(tree)
    if isinstance(tree, dict):
        return {key: build(part, get) for key, part in tree.items()}
    parts = [build(part, get) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def each(value: Any, do: Callable[[Any], Any]) -> Any:
    """The same, with `do` of every leaf."""
    if isinstance(value, dict):
        return {key: each(part, do) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [each(part, do) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return do(value)


def is_bfloat16(value: Any) -> bool:
    """A tensor of torch, or an array of ml_dtypes (JAX)."""
    return str(getattr(value, "dtype", "")).endswith("bfloat16")


def bits(value: Any) -> Any:
    """Of bfloat16: as uint16, which NumPy has."""
    if hasattr(value, "detach"):
        import torch

        return value.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16)
    return value.view(np.uint16)


def as_bfloat16(array: Any) -> Any:
    """Of such bits: a tensor over the same memory."""
    import torch

    return torch.from_numpy(np.asarray(array).view(np.int16)).view(torch.bfloat16)
