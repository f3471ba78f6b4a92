#!/usr/bin/env python3
"""Makes the seeds that are not text: `fuzz/seeds.py`, anywhere in the repository. Numbers are those of the protocols."""

import gzip
import struct
from pathlib import Path

seeds = Path(__file__).parent / "seeds"
EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED, LIST_META, SET_META = 1, 2, 3, 5, 6, 7, 8, 9, 10
READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)


def write(target, name, *parts):
    folder = seeds / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(parts))


def option(kind, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", kind, len(data)) + data


def string(text):
    return struct.pack(">I", len(text)) + text


def choose(kind, name=b"", *infos):
    return option(kind, string(name) + struct.pack(f">H{len(infos)}H", len(infos), *infos))


def meta(kind, name, *queries):
    return option(kind, string(name) + struct.pack(">I", len(queries)) + b"".join(map(string, queries)))


def request(kind, offset, length, flags=0, data=b""):
    return struct.pack(">IHHQQI", 0x25609513, flags, kind, 7, offset, length) + data


FLAGS = struct.pack(">I", 3)
OFF, OFFERED, REQUIRED, ON = (bytes([n]) for n in range(4))
every = [
    request(READ, 0, 4096), request(WRITE, 512, 3, 1, b"abc"), request(FLUSH, 0, 0), request(TRIM, 0, 65536),
    request(CACHE, 1, 1), request(ZEROES, 4096, 4096, 2), request(STATUS, 0, 1 << 20, 8),
]
wrong = [
    request(READ, 1 << 20, 1), request(9, 0, 0), request(ZEROES, 0, 1, 16 | 2), request(TRIM, 0, 1, 4),
    request(READ, 2**64 - 1, 2), request(READ, 0, 65537), request(WRITE, 0, 65537),
]
write("nbd", "go", OFF, FLAGS, choose(GO, b"", 3, 0), *every)
write("nbd", "wrong-requests", OFF, FLAGS, choose(GO), *wrong)
write("nbd", "everything", OFF, FLAGS, option(LIST), choose(INFO, b"a"), option(STRUCTURED), meta(LIST_META, b"a"),
      meta(SET_META, b"a", b"base:allocation"), choose(GO, b"a"), *every)
write("nbd", "structured", OFFERED, FLAGS, option(STRUCTURED), meta(SET_META, b"", b"base:", b"base:allocation"), choose(GO), *every)
write("nbd", "tls", OFFERED, FLAGS, option(STARTTLS), option(STRUCTURED), choose(GO), *every[:2])
write("nbd", "tls-required", REQUIRED, FLAGS, option(LIST), choose(GO), option(STARTTLS), choose(GO, b"a"), *every[2:])
write("nbd", "tls-refused", OFF, FLAGS, option(STARTTLS), choose(GO, b"nowhere"), choose(GO))
write("nbd", "tls-twice", ON, FLAGS, option(STARTTLS), option(EXPORT_NAME, b"a"))
write("nbd", "zeroes", OFF, struct.pack(">I", 1), option(EXPORT_NAME), *every[:1])
write("nbd", "abort", OFF, FLAGS, option(LIST), option(ABORT))
write("nbd", "unknown", OFF, FLAGS, option(77, b"x" * 20), option(GO, b"short"), meta(SET_META, b"", b"x" * 300), choose(INFO))
write("nbd", "flags", OFF, struct.pack(">I", 255))


def reply(kind, data=b""):
    return struct.pack(">QIII", 0x3E889045565A9, GO, kind, len(data)) + data


def greeting(size, flags, *infos):
    export = struct.pack(">HQH", 0, size, flags)
    return b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3) + reply(3, export) + b"".join(reply(3, i) for i in infos) + reply(1)


def answer(cookie, error=0):
    return struct.pack(">IQ", error, cookie)


ALL = 1 | 4 | 8 | 32 | 64
# The first byte says what comes before: 0 nothing, 1 and 2 a greeting, 3 a greeting, and the magic number of each reply.
write("device", "greeting", b"\0", greeting(1 << 20, ALL, struct.pack(">HIII", 3, 512, 4096, 1 << 20)))
write("device", "large-blocks", b"\0", greeting(1 << 20, ALL, struct.pack(">HIII", 3, 4096, 4096, 65536)))
write("device", "no-blocks", b"\0", greeting(1 << 20, ALL, struct.pack(">HIII", 3, 0, 3, 1)))
write("device", "read-only", b"\0", greeting(4096, 3))
write("device", "refused", b"\0", b"NBDMAGICIHAVEOPT\0\3", reply(0x80000006, b"no such export"))
write("device", "old", b"\0", b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53")
write("device", "silent", b"\1")
for start in (0, 1):
    flush = answer(start)
    write("device", f"answers-{start}", b"\3", *[answer(start + n) for n in range(8)])
    write("device", f"errors-{start}", b"\3", *[answer(start + n, 5) for n in range(8)])
write("device", "twice", b"\3", answer(0), answer(0))
write("device", "broken", b"\1", bytes(64))

# The first byte: 1 structured replies, 8 the export that can only be read, 6 the rest as it is. Then six bytes a request.
mixed = bytes(n for i in range(40) for n in (i % 8, (0, 1, 0xC0, 0x41)[i % 4], i * 3 % 128, i, i % 4, i))
mixed = bytes(b if i % 6 or b != DISC else READ for i, b in enumerate(mixed))
for first, name in ((0, "simple"), (1, "structured"), (8, "read-only"), (9, "read-only-structured")):
    write("transmission", name, bytes([first]), mixed)
write("transmission", "beyond", b"\0", bytes(n for i in range(12) for n in (i % 7 if i % 7 != DISC else 0, 0xC0, 127, 255, 1, 0)))
write("transmission", "raw", b"\6", *[request(kind, offset, 512, 0, bytes(512) if kind == WRITE else b"") for kind in (0, 1, 3, 5) for offset in (0, 65536)])
write("transmission", "cut", b"\7", request(WRITE, 0, 4096, 0, b"x"))
write("transmission", "no-request", b"\6", bytes(28))

recording = Path(__file__).parent.parent / "crates/blkmq-workbench/tests/data/linux-6.12-mq-deadline"
for name in ("merge", "prio"):
    found = sorted((recording / name).glob("*.blktrace.0"))
    write("trace", name, found[0].read_bytes()[:6000])
# The records before and behind the first text, which changes a knob.
trace = gzip.decompress((recording.parent / "linux-6.12-kyber/knobs-d32/trace.blktrace.0.gz").read_bytes())
starts, at = [], 0
while at < len(trace):
    starts.append(at)
    at += 48 + int.from_bytes(trace[at + 46 : at + 48], "little")
text = next(number for number, start in enumerate(starts) if b"knob " in trace[start + 48 : starts[number + 1]])
write("trace", "knobs", trace[starts[text - 60] : starts[text + 60]])
write("trace", "cut", sorted((recording / "merge").glob("*.blktrace.0"))[0].read_bytes()[:100])


# Recordings of BFQ: what their first milliseconds decide, and what the trace tells of them.
ACTIONS = {2: "M", 3: "F", 7: "D", 8: "C", 12: "I"}


def told(trace, end):
    """Lines of the trace up to a time: TIME ACTION PID SECTOR NR_SECTORS KIND."""
    at, lines = 0, []
    while at < len(trace):
        _, _, time, sector, length, action, pid, _, _, _, more = struct.unpack_from("<IIQQIIIIIHH", trace, at)
        at += 48 + more
        category = action >> 16
        if action & 0xFF in ACTIONS and not category & 1 << 10 and time <= end:
            kind = "R" if category & 1 else "WS" if category & 8 else "W"
            lines.append(f"{time} {ACTIONS[action & 0xFF]} {pid} {sector} {length // 512} {kind}\n")
    return "".join(lines)


def parts(*texts):
    return "---\n".join(texts).encode()


for folder in sorted((recording.parent / "linux-6.12-bfq").iterdir()):
    decisions = gzip.decompress((folder / "decisions.txt.gz").read_bytes()).decode().splitlines(keepends=True)
    decisions = decisions[:90]
    trace = gzip.decompress((folder / "trace.blktrace.0.gz").read_bytes())
    groups = folder / "groups.txt"
    groups = groups.read_text() if groups.exists() else ""
    end = int(decisions[-1].split()[0])
    write("decisions", folder.name, parts("".join(decisions), (folder / "processes.txt").read_text(), groups, told(trace, end)))
PROCESSES, GROUPS = "1 a / 2 4\n2 b g 2 0\n3 c g/h 3 7\n- d - 1 -\n", "g default 10\ng/h 1000\n"
write("decisions", "mixed", parts(
    "1000 ask 1\n1001 slot 1S 5\n1002 serve 1S 0 8\n1003 ask 1\n1004 none\n1005 expire 1S TOO_IDLE\n1006 slot A 1\n"
    "1007 slot 2A 1\n1008 serve 2A 64 8\n1009 expire SHARED PREEMPTED\n2000 ask 1\n2001 serve 9S 512 8\n",
    PROCESSES, GROUPS,
    "10 I 1 0 8 R\n20 I 1 8 8 R\n30 M 1 8 8 R\n40 F 2 56 8 WS\n50 I 2 64 8 W\n60 F 2 56 8 W\n70 I 9 512 8 D\n"
    "1500 D 1 0 8 R\n1600 C 0 0 8 R\n1700 R 1 0 8 R\n1800 I 3 18446744073709551615 8 R\n",
))
write("decisions", "deep", parts("5000000 ask 1\n", "1 a " + "g/" * 200 + "h 2 4\n", "g/g/g 1000\n", "1 I 1 0 8 R\n"))
for number, wrong in enumerate((
    parts("x ask 1\n"), parts("1 serve 603S\n"), parts("1 expire 603S WHY\n"), parts("1 slot 603\n"), parts("1 do\n"),
    parts("", "1 a / 4 4\n", "a 1001\n"), parts("", "1 a / 2 8\n", "a//b 5\n"), parts("", "1 a /\n", "a\n"),
    parts("", "1 a / 2 4\n1 b / 2 4\n", "a 1\na 2\n"),
)):
    write("decisions", f"bad-{number}", wrong)


def descriptor(tag, kind, sector, sectors, flags=0):
    return struct.pack("<HIIQQ", tag, kind | flags << 8, sectors, sector, 0)


META, FUA, NOUNMAP, SWAP = 1 << 3, 1 << 5, 1 << 7, 1 << 8
alone, together = b"\0", b"\1"
good = [
    descriptor(0, 1, 8, 16, FUA | META), descriptor(1, 0, 8, 16), descriptor(2, 2, 0, 0), descriptor(3, 5, 8, 8, NOUNMAP),
    descriptor(4, 0, 0, 128, SWAP), descriptor(5, 3, 16, 8), descriptor(6, 5, 0, 8), descriptor(7, 0, 504, 8),
    descriptor(0, 1, 384, 128), descriptor(0, 0, 384, 128), descriptor(1, 2, 2**64 - 1, 2**32 - 1),
]
bad = [
    descriptor(0, 0, 0, 0), descriptor(1, 1, 0, 2**32 - 1), descriptor(2, 0, 2**64 - 1, 8), descriptor(3, 0, 1, 8),
    descriptor(4, 1, 512, 8), descriptor(5, 4, 0, 8), descriptor(6, 255, 0, 8, 2**24 - 1), descriptor(7, 1, 0, 136),
    descriptor(0, 3, 508, 8), descriptor(1, 5, 2**63, 2**31), descriptor(2, 13, 0, 0), descriptor(3, 0, 0, 7),
]
write("ublk_descriptors", "requests", alone, *good)
write("ublk_descriptors", "nonsense", alone, *bad)
write("ublk_descriptors", "mixed", alone, *(each for pair in zip(good, bad) for each in pair))
write("ublk_descriptors", "tags", together, *good[:8], *bad[:8], descriptor(8, 0, 0, 8), descriptor(65535, 1, 0, 8), *good[:3], *good[:3])


def guest(kind, *parts, size=0x800):
    """A ring's kind and a guest's memory, with each part at its place."""
    image = bytearray(size)
    for place, data in parts:
        image[place:place + len(data)] = data
    return bytes([kind]) + bytes(image)


def split(address, length, flags=0, following=0):
    return struct.pack("<QIHH", address, length, flags, following)


def packed(address, length, flags, buffer=0):
    return struct.pack("<QIHH", address, length, buffer, flags)


def header(kind, sector=0):
    return struct.pack("<IIQ", kind, 0, sector)


NEXT, WRITES, TABLE, HERE = 1, 2, 4, 1 << 7
EIGHT, PACKED, EVENT, PLAIN = 3 << 3, 1, 2, 4
ONE, TWO = (0x200, struct.pack("<HHHH", 0, 1, 0, 0)), (0x200, struct.pack("<HHHH", 0, 2, 0, 3))
READS = split(0x400, 16, NEXT, 1) + split(0x600, 512, WRITES | NEXT, 2) + split(0x420, 1, WRITES)
FLUSHES = split(0x410, 16, NEXT, 4) + split(0x421, 1, WRITES)
write("chains", "read-and-flush", guest(EIGHT | EVENT, (0, READS + FLUSHES), TWO, (0x400, header(0) + header(4))))
write("chains", "table", guest(EIGHT, (0, split(0x480, 48, TABLE)), ONE, (0x480, READS), (0x400, header(0, 7))))
RANGES = struct.pack("<QIIQII", 8, 8, 0, 32, 1, 1)
ZEROES_OF = split(0x400, 16, NEXT, 1) + split(0x440, 32, NEXT, 2) + split(0x420, 1, WRITES)
write("chains", "ranges", guest(EIGHT, (0, ZEROES_OF), ONE, (0x400, header(13)), (0x440, RANGES)))
write("chains", "across", guest(EIGHT, (0, split(0xff8, 16, NEXT, 1) + split(0xfff, 2, WRITES)), ONE))
write("chains", "loop", guest(EIGHT, (0, split(0x400, 16, NEXT, 1) + split(0x400, 16, NEXT)), ONE))
write("chains", "no-status", guest(EIGHT, (0, split(0x400, 16)), ONE))
write("chains", "no-tables", guest(EIGHT | PLAIN, (0, split(0x480, 48, TABLE)), ONE, (0x480, READS)))
P_READ = packed(0x400, 16, HERE | NEXT) + packed(0x600, 64, HERE | NEXT | WRITES) + packed(0x420, 1, HERE | WRITES, 5)
write("chains", "packed", guest(EIGHT | PACKED | EVENT, (0, P_READ), (0x400, header(0))))
P_TABLE = packed(0x400, 16, 0) + packed(0x420, 1, WRITES)
write("chains", "packed-table", guest(EIGHT | PACKED, (0, packed(0x480, 32, HERE | TABLE, 2)), (0x480, P_TABLE)))
write("chains", "packed-short", guest(EIGHT | PACKED, (0, packed(0x400, 16, HERE | NEXT))))


def message(code, *words, form=None, flags=1):
    body = struct.pack("<" + (form or f"{len(words)}I"), *words)
    return struct.pack("<III", code, flags, len(body)) + body


REGION = struct.pack("<QQQQ", 0, 1 << 20, 1 << 40, 0)
HELLO = b"".join([message(3), message(1), message(2, 1 << 30, form="Q"), message(15), message(16, 0xb22b, form="Q")])
RINGS = b"".join([
    message(17), message(8, 0, 128), message(10, 0, 0), message(9, 0, 0, 1, 2, 3, 0, form="IIQQQQ"),
    message(18, 0, 256), message(11, 0, 0), message(12, 0x100, form="Q"), message(34), message(4), message(36),
])
write("vhost_messages", "hello", b"\0", HELLO, RINGS)
write("vhost_messages", "config", b"\0", message(24, 0, 256, 0) + message(25, 32, 1, 1, 0, form="3IB", flags=9))
write("vhost_messages", "memory", b"\1", struct.pack("<IIIII", 5, 1, 40, 1, 0), REGION,
      struct.pack("<IIIQ", 37, 9, 40, 0), REGION, message(13, 0, form="Q"), message(21),
      message(32, 4096, 0, 1, 128, 0, form="QQHHI"))
write("vhost_messages", "two-regions", b"\2", struct.pack("<IIIII", 5, 1, 72, 2, 0), REGION, REGION)
write("vhost_messages", "kept", b"\0", message(31, 0, 0, 2, 128, form="QQHH"), struct.pack("<IIIQ", 38, 1, 40, 0),
      REGION)
write("vhost_messages", "unknown", b"\0", message(99), message(1, flags=2))
write("vhost_messages", "short", b"\0", message(5, 9, 0), message(9, 0)[:-1])
