# SPDX-License-Identifier: Apache-2.0
"""The CRCs that Python has not got, a byte at a time, by nothing of ours."""


def _table(poly):
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ poly if i & 1 else i >> 1
        table.append(i)
    return table


_CRC32C = _table(0x82F63B78)
_CRC64NVME = _table(0x9A6C9329AC4BC9B5)


def _crc(table, mask, data):
    crc = mask
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ mask


def crc32c(data):
    return _crc(_CRC32C, (1 << 32) - 1, data)


def crc64nvme(data):
    return _crc(_CRC64NVME, (1 << 64) - 1, data)
