# SPDX-License-Identifier: Apache-2.0
"""The PTX that the library carries, run here instruction by instruction: what a driver is given computes CRC32C, by what PTX's manual says of
each instruction. Its source is tested in src/gpu/test_check.c; no GPU has a part in either."""

import pathlib
import re

import pytest
from lib_crc import crc32c

PTX = pathlib.Path(__file__).parent.parent / "src/gpu/crc_kernel.ptx"
THREADS, PIECES, CRCS, DATA, SHARED = 256, 1 << 32, 2 << 32, 3 << 32, 4 << 32
BITS = {"u8": 8, "u32": 32, "s32": 32, "b32": 32, "u64": 64, "s64": 64, "b64": 64, "pred": 1}


def signed(value, kind):
    return value - (1 << BITS[kind]) if kind[0] == "s" and value >> (BITS[kind] - 1) else value


def field(value, start, length, kind):
    found = value >> start & (1 << length) - 1
    return found - (1 << length) if kind[0] == "s" and found >> (length - 1) else found


#: By the name before the type: of operands that were made signed where the type is.
WORK = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b, "mul.wide": lambda a, b: a * b,
    "rem": lambda a, b: a % b, "and": lambda a, b: a & b, "xor": lambda a, b: a ^ b, "not": lambda a: ~a, "neg": lambda a: -a,
    "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "max": max, "mov": lambda a: a, "cvta.to.global": lambda a: a,
    "setp.eq": lambda a, b: a == b, "setp.ne": lambda a, b: a != b, "setp.lt": lambda a, b: a < b, "setp.le": lambda a, b: a <= b,
    "setp.gt": lambda a, b: a > b, "setp.ge": lambda a, b: a >= b, "selp": lambda a, b, p: a if p else b,
}


def parse(text):
    """([(guard, instruction, operands)], {label: index}, {shared array: offset})"""
    body = text[text.index("{") + 1:text.rindex("}")]
    code, labels, shared, room = [], {}, {}, 0
    for line in re.sub(r"//.*", "", body).splitlines():
        line = line.strip().rstrip(";")
        if found := re.match(r"\.shared \.align \d+ \.b8 (\w+)\[(\d+)\]", line):
            shared[found[1]], room = SHARED + room, room + int(found[2])
        elif found := re.match(r"(\w+):$", line):
            labels[found[1]] = len(code)
        elif line and not line.startswith("."):
            guard, name, operands = re.match(r"(?:@(%p\d+)\s+)?(\S+)\s*(.*)", line).groups()
            code.append((guard, name, re.split(r",\s*", operands) if operands else []))
    return code, labels, shared


class Thread:
    def __init__(self, program, number, memory):
        self.code, self.labels, self.shared = program
        self.registers = {"%tid.x": number, "%ctaid.x": 1}
        self.memory, self.at = memory, 0

    def value(self, operand, kind="b64"):
        if operand in self.shared:
            return self.shared[operand]
        value = self.registers[operand] if operand[0] == "%" else int(operand)
        return signed(value & (1 << BITS[kind]) - 1, kind)

    def place(self, operand):
        """(bytes, offset) of an operand in brackets."""
        name, _, more = operand.strip("[]").partition("+")
        address = self.value(name) + int(more or 0)
        return self.memory[address >> 32], address & 0xFFFFFFFF

    def load(self, name, kind, operand):
        if ".param" in name:
            return {"0": PIECES, "1": CRCS}[operand.strip("[]")[-1]]
        where, at = self.place(operand)
        assert at + BITS[kind] // 8 <= len(where)
        return int.from_bytes(where[at:at + BITS[kind] // 8], "little")

    def run(self):
        """Up to the next barrier. False: it returned."""
        while self.at < len(self.code):
            guard, name, operands = self.code[self.at]
            self.at += 1
            if guard and not self.registers[guard]:
                continue
            what, _, kind = name.rpartition(".")
            if name in ("bra", "bra.uni"):
                self.at = self.labels[operands[0]]
            elif name == "bar.sync":
                return True
            elif name == "ret":
                return False
            elif what.startswith("st"):
                where, at = self.place(operands[0])
                where[at:at + 4] = self.value(operands[1], kind).to_bytes(4, "little")
            else:
                self.registers[operands[0]] = self.result(what, kind, operands[1:])
        return False

    def result(self, what, kind, operands):
        to = kind
        if what.startswith("ld"):
            return self.load(what, kind, operands[0])
        if what == "bfe":
            value, start, length = (self.value(o) for o in operands)
            made = field(value, start, length, kind)
        elif what.startswith("cvt.") and not what.startswith("cvta"):
            made, to = self.value(operands[0], kind), what.split(".")[1]
        elif what == "shl" or what == "shr":
            made = WORK[what](self.value(operands[0], kind), self.value(operands[1], "u32"))
        elif what == "selp":
            made = WORK[what](self.value(operands[0], kind), self.value(operands[1], kind), self.registers[operands[2]])
        else:
            made = WORK[what](*(self.value(o, kind) for o in operands))
            to = "b64" if what == "mul.wide" else "pred" if what.startswith("setp") else kind
        return int(made) & (1 << BITS[to]) - 1


@pytest.mark.long
@pytest.mark.parametrize("size", [9, 1031])
def test_the_kernel_as_it_is_shipped(size):
    program = parse(PTX.read_text())
    data = bytes((i * 37 + (i >> 5)) % 256 for i in range(size))
    pieces = bytearray(16) + (DATA + 5).to_bytes(8, "little") + size.to_bytes(8, "little")  # block number 1 of two
    crcs = bytearray(8)
    memory = {PIECES >> 32: pieces, CRCS >> 32: crcs, DATA >> 32: bytes(5) + data, SHARED >> 32: bytearray(2048)}
    threads = [Thread(program, number, memory) for number in range(THREADS)]
    while any([thread.run() for thread in threads]):
        pass
    assert (int.from_bytes(crcs[:4], "little"), int.from_bytes(crcs[4:], "little")) == (0, crc32c(data))
