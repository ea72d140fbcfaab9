# SPDX-License-Identifier: Apache-2.0
"""The rival DDStore (github.com/ORNL/DDStore, over MPI): measured where LEAT_BENCH_DDSTORE names a checkout and mpicxx is there."""


def reader(suite, stack, array, batch):
    return None
