# man_page.awk: makes a manual page of what a program says with --help. Variables: name and section
# of the page, what (the program in a line), program (its name) and called (the name that it says
# itself), date and version.
#
# Such a text has lines of usage, the description, and rows of two columns: what may be given, and
# what it does. A line that ends with a colon is a heading of rows. Lines after the rows are notes,
# and those of them that are indented are examples.

# A word of roff: no character of it is a command.
function plain(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    gsub(/`/, "\\(ga", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/~/, "\\(ti", text)
    return text
}

# A line of text.
function line(text) {
    text = plain(text)
    print (text ~ /^[.']/ ? "\\&" : "") text
}

function heading(text) {
    if (text != under) print ".SH " text
    under = text
}

# Where the second column of most rows begins: behind two spaces or more.
function second_column(    i, at, most, column, seen) {
    for (i = first; i <= count; i++) {
        if (lines[i] ~ /^ +[^ ].*[^ ]   *[^ ]/) {
            match(lines[i], /^ +[^ ]+( [^ ]+)*   */)
            at = RLENGTH
            if (++seen[at] > most) { most = seen[at]; column = at }
        }
    }
    return column
}

{ lines[++count] = $0 }

END {
    printf ".TH \"%s\" \"%s\" \"%s\" \"gdrcore %s\"\n", toupper(name), section, date, version
    heading("NAME")
    print plain(name) " \\- " plain(what)
    heading("SYNOPSIS")
    for (first = 1; lines[first] ~ /^(usage:|      ) /; first++) {
        usage = substr(lines[first], 8)
        sub("^" called "( |$)", program " ", usage)
        told = ""
        if (match(usage, /   *[^ ]/)) {
            told = substr(usage, RSTART + RLENGTH - 1)
            usage = substr(usage, 1, RSTART - 1)
        }
        sub(/ $/, "", usage)
        print ".TP"
        print ".B " plain(usage)
        if (told != "") line(told)
    }
    column = second_column()
    state = "text"
    for (i = first; i <= count; i++) {
        row = lines[i]
        if (row ~ /^ *$/) {
            if (state == "text" || state == "notes") blank = 1
            continue
        }
        indent = match(row, /[^ ]/) - 1
        if (indent == 0 && row ~ /^[a-z ]+:$/) {
            print ".SS " plain(substr(row, 1, length(row) - 1))
            state = "rows"
        } else if (indent == 0) {
            if (state == "rows") state = "notes"
            heading(state == "text" ? "DESCRIPTION" : "NOTES")
            if (blank) print ".PP"
            line(row)
        } else if (state == "notes" || state == "example") {
            if (state == "notes") { heading("EXAMPLES"); print ".nf" }
            state = "example"
            line(substr(row, 3))
        } else if (indent >= column && state == "rows") {
            line(substr(row, indent + 1))
        } else {
            if (state == "text") heading(rows_of())
            state = "rows"
            term = row
            told = ""
            if (substr(row, column, 1) == " ") {
                term = substr(row, 1, column)
                told = substr(row, column + 1)
            }
            gsub(/^ +| +$/, "", term)
            print ".TP"
            print ".B " plain(term)
            if (told != "") line(told)
        }
        blank = 0
    }
    if (state == "example") print ".fi"
    heading("SEE ALSO")
    if (name == "gdrcore") print "The pages that come with gdrcore, in its folder of documentation."
    else print ".BR gdrcore (1)"
}

# What the rows are.
function rows_of(    i) {
    for (i = first; i <= count; i++) if (lines[i] ~ /^ +--*[a-z]/) return "OPTIONS"
    return "COMMANDS"
}
