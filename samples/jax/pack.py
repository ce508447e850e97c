"""Makes samples of what record.py wrote: python samples/jax/pack.py RECORDED WHERE_RECORD_LAY

Paths of the machine become the program's own, HLO of programs that the device did not run in the recorded steps goes, and so do names of hosts. What is
left larger than 400 kB is left out.
"""

import gzip
import json
import re
import sys
from pathlib import Path

import advisor
from advisor.sources.protobuf import Value, fields, message, text

HERE = Path(__file__).parent
OWN = "advisor/samples/jax/record.py"
MOST_BYTES = 400_000
# XSpace: planes, hostnames. XPlane: name, event metadata, a map from numbers to {id, name, …}.
PLANES, HOSTNAMES, NAME, TITLES = 1, 4, 2, 4


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + bytes(value)


def title(entry: Value) -> str:
    """The name in an entry of the map."""
    return next((text(v) for n, part in fields(message(entry)) if n == 2 for m, v in fields(message(part)) if m == 2), "")


def packed(raw: bytes, ran: set[str]) -> bytes:
    """The profile without hosts and without the HLO of other programs than `ran`."""
    out = b""
    for number, value in fields(memoryview(raw)):
        if number == PLANES:
            parts = list(fields(message(value)))
            if any(n == NAME and text(v) == "/host:metadata" for n, v in parts):
                value = memoryview(b"".join(field(n, v) for n, v in parts if n != TITLES or title(v) in ran))
        if number != HOSTNAMES:
            out += field(number, value)
    return out


def main() -> None:
    recorded, lay = Path(sys.argv[1]), sys.argv[2]
    if len(lay) != len(OWN):
        sys.exit(f"record.py must have lain at a path of {len(OWN)} letters: lengths stand before texts in the file")
    manifest = json.loads((recorded / "manifest.json").read_text())
    for name, case in manifest["cases"].items():
        for side in ("slow", "fixed"):
            source = recorded / f"{name}.{side}.xplane.pb.gz"
            if not source.is_file():
                continue
            ops = advisor.load(source).compiled_ops
            ran = {f"{module}({number})" for module, number in zip(ops["module"], ops["program"].tolist(), strict=True)}
            made = packed(gzip.decompress(source.read_bytes()), ran).replace(lay.encode(), OWN.encode())
            if left := set(re.findall(rb"/(?:home|root|work|tmp|mnt)/[\w./-]+", made)):
                sys.exit(f"{source.name} still holds {sorted(left)[:3]}")
            small = gzip.compress(made, 9, mtime=0)
            print(f"{source.name}: {len(small):,} bytes" + (", left out" if len(small) > MOST_BYTES else ""))
            if len(small) <= MOST_BYTES:
                (HERE / source.name).write_bytes(small)
                case.setdefault("jax", {})[side] = source.name
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


main()
