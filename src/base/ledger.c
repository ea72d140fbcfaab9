/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ledger.h"

_Atomic uint64_t ledger_bytes[LEDGER_REASONS];

const char *const ledger_names[LEDGER_REASONS] = {
    [LEDGER_GATHER] = "gather",
    [LEDGER_BOUNCE] = "bounce",
    [LEDGER_DECODE] = "decode",
    [LEDGER_USER] = "user",
};
