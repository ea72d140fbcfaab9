# SPDX-License-Identifier: Apache-2.0
"""These tests run in the guest that tests/rdma/inside prepares, and nowhere else."""

import os

collect_ignore_glob = [] if "GUEST_OUT" in os.environ else ["test_*.py"]
