# SPDX-License-Identifier: Apache-2.0
"""The suite imports fabric for tests that log in to the server, which are not run."""

Connection = None
