#!/usr/bin/env python3
"""Deliberate faults: each is applied to a copy of the sources, and some named test must notice it.

Usage: mutate.py [--list] [--stale] [--only WHICH[,WHICH...]] [--stages NAME[,NAME...]] [--write]

The faults are data, tests/faults/*.toml; README.md there says how a row is written. WHICH is a
number of --list, or words of a description, or a path of sources.

The copy is a git worktree of HEAD under build/mutants, with a target folder of its own, so that
only what a fault touches is compiled again. For each fault its stages run in order until one fails;
the test that failed first, or that never ends, is its witness. A fault that nothing notices is a
survivor, and makes the exit status 1. The recorded witness of a fault runs first, by itself.
--stale only says which faults have no place in the sources any more, or no stage. --write records
the witnesses in tests/faults/witnesses.tsv, and their counts in docs/records/PROOF.md, where
--stale --write writes the counts alone."""

import collections, functools, glob, os, re, shlex, signal, subprocess, sys, tempfile, time, tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.join(ROOT, "build", "mutants")
TARGET = os.path.join(ROOT, "build", "mutants-target")
FAULTS = os.path.join(ROOT, "tests", "faults")
STAGES = os.path.join(FAULTS, "stages.toml")
WITNESSES = os.path.join(FAULTS, "witnesses.tsv")
# The page with the counts, between its marks.
PAGE = os.path.join(ROOT, "docs", "records", "PROOF.md")
TABLE = r"(<!-- mutants -->\n)(.*?)(<!-- end -->)"
# Time limit of a stage in seconds, on an idle machine; more than the 60 s after which the test
# runner names a test that hangs.
LIMIT = 100 * int(os.environ.get("GDRC_TEST_PATIENCE", "1"))
# Time limit of compiling, in seconds.
BUILD_LIMIT = 1800

# `edits` are triples: the item, its text, and what stands there instead.
Fault = collections.namedtuple("Fault", "what subject file edits stage")


def load(path):
    with open(path, "rb") as f:
        return tomllib.load(f)


def faults():
    """All rows, in the order of their subjects."""
    rows = []
    for path in sorted(glob.glob(os.path.join(FAULTS, "*.toml"))):
        subject = os.path.basename(path).removesuffix(".toml")
        for file, held in load(path).items() if path != STAGES else ():
            for what, (*edits, stage) in held.items():
                edits = edits if isinstance(edits[0], list) else [edits]
                rows.append(Fault(what, subject, file, edits, stage))
    return rows


# --- places -------------------------------------------------------------------------------------

# Where no item begins and no brace counts: comments, strings, characters.
QUIET = re.compile(
    r"//[^\n]*|/\*.*?\*/|b?r(#+)\".*?\"\1|b?r\"[^\"]*\"|\"(?:\\.|[^\"\\])*\"|'(?:\\.[^']*|[^'\\])'",
    re.S,
)


@functools.cache
def code(source):
    """The same text with spaces instead of what is quiet."""
    return QUIET.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)


def items(source, name):
    """Where the Rust items of a name begin and end: functions, types, constants, modules, impls."""
    if not name:
        return [(0, len(source))]
    bare, found = code(source), []
    kinds = r"fn|struct|enum|union|trait|mod|impl(?:<[^{]*?>)?|macro_rules!|const|static|type"
    for m in re.finditer(rf"\b({kinds})\s+(?:mut\s+)?{re.escape(name)}\b", bare):
        ends_at_brace, depth = m[1] not in ("const", "static", "type"), 0
        for c in re.finditer(r"[\[({;})\]]", bare[m.end():]):
            depth += 1 if c[0] in "[({" else -1 if c[0] in "})]" else 0
            if depth <= 0 and (c[0] == ";" or c[0] == "}" and ends_at_brace):
                found.append((m.start(), m.end() + c.end()))
                break
    return found


def pattern(text):
    """Matches `text` however rustfmt breaks its lines: other spaces, a last comma, comments."""
    gap, result, before = r"(?:\s|//[^\n]*\n)", "", ""
    for word in re.findall(r"\w+|[^\w\s]", text):
        if before:
            apart = before[-1].isalnum() and word[0].isalnum()
            result += gap + ("+" if apart else "*")
        result += rf"(?:,{gap}*)?" if word in list(")]}") and before not in (",", "") else ""
        result += re.escape(word)
        before = word
    starts, ends = (r"(?<!\w)" if text.strip()[0:1].isalnum() else ""), r"(?!\w)"
    return re.compile(starts + result + (ends if before[-1:].isalnum() else ""))


def places(source, item, text):
    """Where a text stands in the items of a name."""
    spans = items(source, item)
    return {m.span() for at, end in spans for m in pattern(text).finditer(source, at, end)}


def apply(fault, source):
    """The faulty source, or None if a text is not there exactly once."""
    for item, old, new in fault.edits:
        found = places(source, item, old)
        if len(found) != 1:
            return None
        (start, end), = found
        source = source[:start] + new + source[end:]
    return source


def read(tree, fault):
    with open(os.path.join(tree, fault.file)) as f:
        return f.read()


def is_stale(fault, stages):
    """Whether its texts or its stage are gone."""
    tests = os.path.join(ROOT, "tests", "tests", fault.stage)
    known = fault.stage in stages or os.path.exists(tests + ".rs") or os.path.isdir(tests)
    there = os.path.exists(os.path.join(ROOT, fault.file))
    return not known or not there or apply(fault, read(ROOT, fault)) is None


# --- stages -------------------------------------------------------------------------------------


def command(stage, test=None):
    """How a stage is built and run, or one test of it; another name is a file of tests/tests."""
    line = load(STAGES)["commands"].get(stage, f"test -q -p gdrcore-tests --test {stage}")
    words = ["cargo"] + shlex.split(line)
    own = words[: words.index("--")] if "--" in words else words
    build = own + ["--no-run"] if own[1] == "test" else ["cargo", "build"] + own[2:]
    return build, words + (["--", "--exact", test] if test else [])


def sh(args, timeout):
    """Runs a command in the copy. What it started ends with it, also when its time is over."""
    env = dict(os.environ, CARGO_TARGET_DIR=TARGET, RUST_BACKTRACE="0")
    # Compiling is most of the time.
    env.update(
        CARGO_PROFILE_RELEASE_LTO="off", CARGO_PROFILE_RELEASE_CODEGEN_UNITS="16",
        CARGO_PROFILE_DEV_DEBUG="0",
    )
    if "loom_ring" in args:
        env.update(RUSTFLAGS="--cfg loom", CARGO_TARGET_DIR=TARGET + "-loom")
    with tempfile.TemporaryFile("w+") as out:
        p = subprocess.Popen(
            args, cwd=TREE, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = p.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            status = None
        out.seek(0)
        return subprocess.CompletedProcess(args, status, out.read())


def witness(stage, run):
    """Who noticed, in words; None if the stage passed."""
    for expression, ending in (
        (r"^---- (\S+) stdout ----", ""), (r"^test (\S+) \.\.\. FAILED", ""),
        (r"^test (\S+) has been running", ", which never ends"), (r"(seed \d+)", ""),
    ):
        found = run.returncode != 0 and re.search(expression, run.stdout, re.M)
        if found:
            return f"{stage}: {found[1]}{ending}"
    if run.returncode is None:
        return f"{stage}: did not end"
    return f"{stage}: exit {run.returncode}" if run.returncode else None


def try_fault(fault, names, known):
    """Applies a fault and looks who notices it: in words, and whether anybody does."""
    source = read(TREE, fault)
    faulty = apply(fault, source)
    if faulty is None:
        return "stale: the text is not there once", False
    first, _, test = known.removesuffix(", which never ends").partition(": ")
    tries = [(first, test)] if first in names and "::" in test else []
    try:
        with open(os.path.join(TREE, fault.file), "w") as f:
            f.write(faulty)
        for stage, test in tries + [(name, None) for name in names]:
            build, run = command(stage, test)
            made = sh(build, BUILD_LIMIT)
            if made.returncode:
                return "stale: does not compile\n" + made.stdout[-2000:], False
            noticed = witness(stage, sh(run, LIMIT))
            if noticed:
                return noticed, True
        return f"**nobody yet** ({', '.join(names)})", False
    finally:
        with open(os.path.join(TREE, fault.file), "w") as f:
            f.write(source)


# --- results ------------------------------------------------------------------------------------


def recorded():
    """What noticed each fault when it was last recorded, by its words."""
    with open(WITNESSES) as f:
        return dict(line.rstrip("\n").split("\t") for line in f)


def record(rows, noticed):
    """Writes who noticed each fault that has been recorded, and how many there are."""
    with open(WITNESSES, "w") as f:
        f.writelines(f"{r.what}\t{noticed[r.what]}\n" for r in rows if r.what in noticed)
    table = ["| subject | faults | with a recorded witness |", "|---|---:|---:|"]
    for subject in dict.fromkeys(r.subject for r in rows):
        whats = [r.what for r in rows if r.subject == subject]
        table.append(f"| `{subject}` | {len(whats)} | {sum(w in noticed for w in whats)} |")
    table.append(f"| all | {len(rows)} | {sum(r.what in noticed for r in rows)} |")
    with open(PAGE) as f:
        text = f.read()
    with open(PAGE, "w") as f:
        f.write(re.sub(TABLE, lambda m: m[1] + "\n".join(table) + "\n" + m[3], text, flags=re.S))


def chosen(rows, which):
    """Numbered rows that are chosen by a number of --list, by words, or by a path."""
    def fits(number, row, word):
        return word == str(number) if word.isdigit() else word in row.what or word in row.file

    numbered = list(enumerate(rows, 1))
    return [(n, r) for n, r in numbered if not which or any(fits(n, r, w) for w in which)]


def copy():
    """Makes the copy that of HEAD."""
    if not os.path.isdir(TREE):
        add = ["git", "worktree", "add", "--force", "--detach", TREE]
        subprocess.run(add, cwd=ROOT, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    subprocess.run(["git", "checkout", "-q", "--force", "--detach", head], cwd=TREE, check=True)


def main():
    args, options = sys.argv[1:], {}
    while args and args[0] in ("--list", "--stale", "--only", "--stages", "--write"):
        option = args.pop(0)
        options[option] = args.pop(0).split(",") if option in ("--only", "--stages") else []
    if args:
        # It would run for hours.
        print(__doc__, file=sys.stdout if args in (["-h"], ["--help"]) else sys.stderr)
        return 0 if args in (["-h"], ["--help"]) else 2
    rows = faults()
    picked = chosen(rows, options.get("--only"))
    if "--list" in options or "--stale" in options:
        if "--stale" in options:
            stages = {name for table in load(STAGES).values() for name in table}
            picked = [(n, r) for n, r in picked if is_stale(r, stages)]
        for n, row in picked:
            print(f"{n:3} {row.what} ({row.file})")
        if "--stale" in options:
            print(f"{len(rows) - len(picked)} passed, {len(picked)} failed")
            if "--write" in options:
                record(rows, recorded())
        return int("--stale" in options and bool(picked))
    copy()
    only = options.get("--stages")
    groups = load(STAGES)["groups"]
    names = {
        n: [s for s in groups.get(r.stage, [r.stage]) if not only or s in only] for n, r in picked
    }
    picked = [(n, r) for n, r in picked if names[n]]
    for stage in dict.fromkeys(s for stages in names.values() for s in stages):
        if any(sh(words, BUILD_LIMIT).returncode != 0 for words in command(stage)):
            print(f"{stage} fails without any fault; nothing can be learnt")
            return 1
    bad, known = 0, recorded()
    for n, row in picked:
        start = time.time()
        result, noticed = try_fault(row, names[n], known.get(row.what, ""))
        bad += not noticed
        print(f"{n:3} {row.what}: {result} ({time.time() - start:.0f} s)", flush=True)
        known.pop(row.what, None)
        if noticed:
            known[row.what] = result.splitlines()[0]
        if "--write" in options:
            # At once, since a run may be stopped.
            record(rows, known)
    print(f"{len(picked) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
