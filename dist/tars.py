"""Files of a tree, and tar archives of them whose bytes depend on nothing else than their names,
contents and rights, and the time of the release."""

import io
import os
import tarfile
from pathlib import Path


def files(tree):
    """Files and links of a tree in a fixed order."""
    found = []
    for folder, folders, names in os.walk(tree):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        found += [Path(folder) / name for name in names + links]
    return sorted(found)


def is_elf(file):
    """Whether it is a program or a library."""
    return not file.is_symlink() and file.open("rb").read(4) == b"\x7fELF"


class Tar:
    """A tar archive that is written to a path or a file."""

    def __init__(self, to, release):
        given = {"name": to} if isinstance(to, Path) else {"fileobj": to}
        self.tar = tarfile.open(mode="w", format=tarfile.PAX_FORMAT, **given)
        self.release = release

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tar.close()

    def put(self, name, content=b"", kind=tarfile.REGTYPE, mode=0o644, link=""):
        """A file, link or folder of root's."""
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(content), link
        info.uname = info.gname = "root"
        info.mtime = self.release.epoch
        self.tar.addfile(info, io.BytesIO(content))

    def add(self, file, name):
        """A file or link of a tree. A file of two names is packed twice."""
        if file.is_symlink():
            self.put(name, kind=tarfile.SYMTYPE, mode=0o777, link=os.readlink(file))
        else:
            self.put(name, file.read_bytes(), mode=file.stat().st_mode & 0o7777)
