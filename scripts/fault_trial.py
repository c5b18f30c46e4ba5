"""One deliberate fault of mutate.py: it is applied to a copy of the sources, and tests are run."""

import os, re, signal, subprocess, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.join(ROOT, "build", "mutants")
TARGET = os.path.join(ROOT, "build", "mutants-target")
# The page with the table of faults, and the table between its marks.
PAGE = os.path.join(ROOT, "docs", "records", "PROOF.md")
TABLE = r"(<!-- mutants -->\n)(.*?)(<!-- end -->)"
# Time limit of a stage in seconds, on an idle machine; more than the 60 s after which the test
# runner names a test that hangs.
LIMIT = 100 * int(os.environ.get("GDRC_TEST_PATIENCE", "1"))
# Time limit of compiling, in seconds.
BUILD_LIMIT = 1800


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
            code = p.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            code = None
        out.seek(0)
        return subprocess.CompletedProcess(args, code, out.read())


def witness(stage, text):
    for pattern, ending in (
        (r"^---- (\S+) stdout ----", ""), (r"^test (\S+) \.\.\. FAILED", ""),
        (r"^test (\S+) has been running", ", which never ends"), (r"(seed \d+)", ""),
    ):
        found = re.search(pattern, text, re.M)
        if found:
            return f"{stage}: {found.group(1)}{ending}"
    return None


def edits(fault):
    """Texts and what stands there instead: a fault may take several."""
    old, new = fault[2:4]
    return list(zip(old, new)) if isinstance(old, tuple) else [(old, new)]


def place(text):
    """Matches `text` however rustfmt breaks its lines: other spaces, a last comma, a comment's next
    line."""
    gap = r"(?:\s|//)*" if "//" in text else r"\s*"
    pattern, before = "", ""
    for word in re.findall(r"\w+|[^\w\s]", text):
        if before:
            apart = r"(?:\s|//)+" if gap != r"\s*" else r"\s+"
            pattern += apart if before[-1].isalnum() and word[0].isalnum() else gap
        pattern += (r"(?:,\s*)?" if word in ")]}" and before not in (",", "") else "") + re.escape(
            word
        )
        before = word
    return re.compile(pattern)


def has_place(fault, source):
    return all(place(old).search(source) for old, _ in edits(fault))


def recorded():
    """What noticed each fault when it was last recorded, by its words: a number changes when a
    fault is put before it."""
    text = open(PAGE).read()
    rows = re.search(TABLE, text, flags=re.S)[2].splitlines()[2:]
    cells = ([cell.strip() for cell in row.split("|")] for row in rows)
    return {c[2]: c[4] for c in cells}


def record(faults, noticed):
    """Writes the table: of each fault that has been recorded, its number and what noticed it."""
    rows = [
        f"| {i} | {fault[0]} | `{fault[1]}` | {noticed[fault[0]]} |"
        for i, fault in enumerate(faults, 1)
        if fault[0] in noticed
    ]
    table = "\n".join(["| | fault | where | noticed by |", "|---|---|---|---|"] + rows)
    text = open(PAGE).read()
    with open(PAGE, "w") as f:
        f.write(re.sub(TABLE, lambda m: m[1] + table + "\n" + m[3], text, flags=re.S))


def stage_of(known, stages):
    """The test that noticed a fault last time, as a stage of its own, if it has a name."""
    stage, _, test = known.removesuffix(", which never ends").partition(": ")
    return [
        (name, build, command + ["--", "--exact", test])
        for name, build, command in stages
        if name == stage and "::" in test and command[:2] == ["cargo", "test"]
    ]


def try_fault(fault, stages, known):
    """Applies a fault and looks who notices it: in words, and whether anybody does."""
    full = os.path.join(TREE, fault[1])
    source = open(full).read()
    if not has_place(fault, source):
        return "stale: the text is not there any more", False
    faulty = source
    for old, new in edits(fault):
        faulty = place(old).sub(lambda _: new, faulty)
    try:
        with open(full, "w") as f:
            f.write(faulty)
        for stage, build, command in stage_of(known, stages) + list(stages):
            made = sh(build, BUILD_LIMIT)
            if made.returncode:
                return "stale: does not compile\n" + made.stdout[-2000:], False
            run = sh(command, LIMIT)
            if run.returncode is None:
                return witness(stage, run.stdout) or f"{stage}: did not end", True
            if run.returncode:
                return witness(stage, run.stdout) or f"{stage}: exit {run.returncode}", True
        return "**nobody yet** (" + ", ".join(s[0] for s in stages) + ")", False
    finally:
        with open(full, "w") as f:
            f.write(source)
