# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a sample to values."""
