"""Takes off the versions of symbols that a file can do without, so that older C libraries load it.

Rust's library asks for newer functions of glibc, such as gettid of 2.30, by weak references, and
goes on without them. But the linker notes their versions as needed, and a C library without one
refuses the file. Such references become ones to any version, and the version's entry names one that
is needed anyway."""

import struct

DYNSYM, VERSYM, VERNEED = 11, 0x6FFFFFFF, 0x6FFFFFFE
WEAK_SYMBOL = 2  # STB_WEAK
ANY_VERSION = 1  # VER_NDX_GLOBAL


def sections(image):
    """Offset and size of the sections of an ELF file of 64 bits, by type."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry, count = struct.unpack_from("<HH", image, 0x3A)
    found = {}
    for i in range(count):
        kind, _, _, offset, size = struct.unpack_from("<IQQQQ", image, table + i * entry + 4)
        found[kind] = (offset, size)
    return found


def needed(image, at):
    """For each library that a file needs versions of: pairs of an entry's offset and its number in
    the file."""
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", image, at)
        entry, entries = at + first, []
        for _ in range(count):
            _, _, number, _, step = struct.unpack_from("<IHHII", image, entry)
            entries.append((entry, number & 0x7FFF))
            entry += step
        yield entries
        if following == 0:
            return
        at += following


def in_file(file):
    """Changes a file, if there is such a version. Twice does as once."""
    image = bytearray(file.read_bytes())
    found = sections(image)
    if not all(kind in found for kind in (DYNSYM, VERSYM, VERNEED)):
        return
    symbols, size = found[DYNSYM]
    strong, weak = set(), {}
    for i in range(size // 24):
        at = found[VERSYM][0] + i * 2
        number = struct.unpack_from("<H", image, at)[0] & 0x7FFF
        if image[symbols + i * 24 + 4] >> 4 == WEAK_SYMBOL:
            weak.setdefault(number, []).append(at)
        else:
            strong.add(number)
    changed = False
    for entries in needed(image, found[VERNEED][0]):
        model = next((entry for entry, number in entries if number in strong), None)
        for entry, number in entries:
            if model is None or number in strong or number not in weak:
                continue
            # The hash of the version's name and its flags, and the name itself.
            image[entry : entry + 6] = image[model : model + 6]
            image[entry + 8 : entry + 12] = image[model + 8 : model + 12]
            for at in weak[number]:
                struct.pack_into("<H", image, at, ANY_VERSION)
            changed = True
    if changed:
        file.write_bytes(image)
