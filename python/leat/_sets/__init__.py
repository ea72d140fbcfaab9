# SPDX-License-Identifier: Apache-2.0
"""Working sets, their batches, and the order of an epoch."""
