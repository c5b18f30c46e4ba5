#!/usr/bin/env python3
"""release.py VERSION [DATE]: makes the sources a release: writes its version wherever one is named,
the heading of CHANGELOG.md and ffi/abi's next file, and commits and tags that as vVERSION. DATE is
today's, if it is not given. Refuses a tree with changes, and a version that is not newer. Nothing
is published."""

import datetime, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADING = r"^## \[(.*)\] - not released yet$"


def git(*words):
    done = subprocess.run(["git", "-C", ROOT, *words], text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def parts(version):
    numbers = re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", version)
    if not numbers or any(int(n) > 255 for n in numbers.groups()):
        sys.exit(f"{version}: a version is three numbers up to 255, as 0.2.0")
    return tuple(int(n) for n in numbers.groups())


class Files:
    """Changes of files, written when all of them are known to be possible."""

    def __init__(self):
        self.texts = {}

    def change(self, path, pattern, to):
        text = self.texts.get(path) or (ROOT / path).read_text()
        self.texts[path], n = re.subn(pattern, to, text, flags=re.MULTILINE)
        if not n:
            sys.exit(f"{path} has no {pattern}")

    def write(self):
        for path, text in self.texts.items():
            (ROOT / path).write_text(text)


def main(version, date=None):
    date = date or datetime.date.today().isoformat()
    new = parts(version)
    if git("status", "--porcelain"):
        sys.exit("the tree has changes: commit them first")
    if git("tag", "--list", f"v{version}"):
        sys.exit(f"v{version} is there already")
    old = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    released = git("tag", "--list", f"v{old}")
    if new < parts(old) or (new == parts(old) and released):
        sys.exit(f"{version} is not newer than {old}")
    files = Files()
    files.change("CHANGELOG.md", HEADING, f"## [{version}] - {date}")
    if version != old:
        was = re.escape(old)
        files.change("Cargo.toml", f'^version = "{was}"', f'version = "{version}"')
        # Packages of this tree have no source.
        files.change("Cargo.lock", f'^version = "{was}"\n(?!source)', f'version = "{version}"\n')
        for path in ("ffi/src/c_consts.rs", "include/gdrcore.h"):
            number = f"{new[0] << 16 | new[1] << 8 | new[2]:#010x}"
            if path.endswith(".rs"):
                number = f"{number[:6]}_{number[6:]}"
            files.change(path, r"^(.*\bGDRC_VERSION\b(?:: u32 =)? )0x[0-9a-f_]+",
                         rf"\g<1>{number}")
        for path in ("docs/using/CI.md", "examples/ci/gitlab-ci.yml", "examples/ci/Dockerfile"):
            files.change(path, f"gdrcore-{was}-", f"gdrcore-{version}-")
        files.change("docs/using/INSTALL.md", f"gdrcore:{was}", f"gdrcore:{version}")
        minors = ["%d.%d" % parts(v)[:2] for v in (old, version)]
        if minors[0] != minors[1]:
            files.change("docs/using/ABI.md", rf"\(gdrcore {re.escape(minors[0])} ",
                         f"(gdrcore {minors[1]} ")
            dump = (ROOT / f"ffi/abi/{minors[0]}.txt").read_text()
            files.texts[f"ffi/abi/{minors[1]}.txt"] = dump
    files.write()
    git("add", "--all")
    git("commit", "--quiet", "--message", f"Release {version}")
    git("tag", "--annotate", f"v{version}", "--message", f"gdrcore {version}")
    print(f"committed and tagged v{version}; `git show v{version}` has what changed")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
