# SPDX-License-Identifier: Apache-2.0
"""`leat.Loader` and its parts."""
