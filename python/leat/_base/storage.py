# SPDX-License-Identifier: Apache-2.0
"""From `storage_options`, as users of fsspec write them, to the library's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

#: flags, endpoint, region, profile, style, ca_file, access_key, secret_key, token
Storage = tuple[int, Optional[str], Optional[str], Optional[str], Optional[str], Optional[str], Optional[str], Optional[str], Optional[str]]

_ANONYMOUS, _INSECURE = 1, 2
_NAMES = {
    "endpoint_url": "endpoint", "endpoint": "endpoint",
    "region": "region", "region_name": "region",
    "profile": "profile", "profile_name": "profile",
    "addressing_style": "style", "style": "style",
    "ca_file": "ca_file", "verify": "verify",
    "key": "key", "aws_access_key_id": "key", "access_key": "key",
    "secret": "secret", "aws_secret_access_key": "secret", "secret_key": "secret",
    "token": "token", "aws_session_token": "token", "session_token": "token",
    "anon": "anon", "anonymous": "anon",
}


def _flatten(options: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if name == "client_kwargs" and isinstance(value, Mapping):
            flat.update(_flatten(value))
        elif name == "config_kwargs" and isinstance(value, Mapping) and set(value) <= {"s3"}:
            flat.update(_flatten(value.get("s3") or {}))
        elif name in _NAMES:
            if value is not None:
                flat[_NAMES[name]] = value
        else:
            raise ValueError(f"storage_options: {name!r} is not known; there are endpoint_url, region, profile, addressing_style, "
                             "ca_file, verify, key, secret, token and anon")
    return flat


def parse(options: Mapping[str, Any] | None) -> Storage | None:
    """None, or empty: all of it from the environment.

    >>> parse({"anon": True, "client_kwargs": {"endpoint_url": "http://localhost:9000"}})
    (1, 'http://localhost:9000', None, None, None, None, None, None, None)
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"storage_options is a dict, as {{'anon': True}}, not {type(options).__name__}")  # a str may be a secret
    if not options:
        return None
    flat = _flatten(options)
    verify = flat.pop("verify", True)
    if isinstance(verify, str):
        flat.setdefault("ca_file", verify)
    flags = (_ANONYMOUS if flat.pop("anon", False) else 0) | (0 if verify else _INSECURE)
    for name, value in flat.items():
        if not isinstance(value, str):
            raise TypeError(f"storage_options: {name} is a str, not {type(value).__name__}")  # the value may be a secret
    if ("key" in flat) != ("secret" in flat):
        raise ValueError("storage_options: key and secret belong together")
    return (flags, flat.get("endpoint"), flat.get("region"), flat.get("profile"), flat.get("style"), flat.get("ca_file"),
            flat.get("key"), flat.get("secret"), flat.get("token"))
