# SPDX-License-Identifier: Apache-2.0
"""The base of the package: arguments, errors, ranks, connections, progress."""
