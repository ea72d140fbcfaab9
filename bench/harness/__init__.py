# SPDX-License-Identifier: Apache-2.0
"""What bench/run is made of: workers (the measured programs), data, the suites, the report."""
