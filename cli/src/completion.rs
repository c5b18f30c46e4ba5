//! What shells complete the programs with: commands by the tables, options by what `--help` tells.

use super::OWN;
use crate::programs::{OTHERS, PROGRAMS};

/// Of `gdrcore`, at `@COMMANDS@`, all commands. Of `gdrcore` and each other program, at
/// `@PROGRAMS@`, the options.
const BASH: &str = r#"_gdrcore() {
    local program=("$1") words=
    if [ "${1##*/}" = gdrcore ] && [ "$COMP_CWORD" = 1 ]; then
        words="@COMMANDS@ --help --version"
    elif [ "${2#-}" != "$2" ]; then
        [ "${1##*/}" != gdrcore ] || program+=("${COMP_WORDS[1]}")
        words=$("${program[@]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z_-]+' | sort -u)
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2")
}
complete -o default -F _gdrcore @PROGRAMS@
"#;

/// Loaded by zsh's `compinit`, which calls the file as a function, or by `.`.
const ZSH: &str = r#"#compdef @PROGRAMS@
_gdrcore() {
    local -a program=("$words[1]") found
    if [[ $PREFIX == -* ]]; then
        [[ ${words[1]:t} != gdrcore || $CURRENT == 2 ]] || program+=("$words[2]")
        found=($("${program[@]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z_-]+' | sort -u))
        compadd -a found
    elif [[ ${words[1]:t} == gdrcore && $CURRENT == 2 ]]; then
        found=(@COMMANDS@)
        _describe command found
    else
        _files
    fi
}
if [[ $funcstack[1] == _* ]]; then _gdrcore "$@"; else compdef _gdrcore @PROGRAMS@; fi
"#;

const FISH: &str = r#"function __gdrcore_options
    set -l words (commandline -opc)
    set -l program $words[1]
    string match -qr '(^|/)gdrcore$' -- $words[1]; and set program $words[1..2]
    type -q $program[1]; or return
    $program --help 2>/dev/null | string match -ra -- '--[a-z][a-z_-]+' | sort -u
end
for program in @PROGRAMS@
    complete -c $program -n 'string match -q -- "-*" (commandline -ct)' -a '(__gdrcore_options)'
end
@COMMANDS@"#;

/// The script of a shell; `None`: of a shell that is not known.
pub fn script(shell: &str) -> Option<String> {
    let (text, command): (_, fn(&str, &str) -> String) = match shell {
        "bash" => (BASH, |name, _| format!("{name} ")),
        "zsh" => (ZSH, |name, what| format!("'{name}:{what}' ")),
        "fish" => (FISH, |name, what| {
            format!("complete -c gdrcore -f -n __fish_use_subcommand -a {name} -d '{what}'\n")
        }),
        _ => return None,
    };
    let own = OWN.map(|(name, what)| (name.split_once(' ').map_or(name, |(name, _)| name), what));
    let commands = PROGRAMS.iter().map(|p| (p.name, p.what)).chain(own);
    let commands: String = commands.map(|(name, what)| command(name, what)).collect();
    let programs = PROGRAMS.iter().map(|p| p.installed).chain(OTHERS);
    let programs: String = programs.map(|name| format!(" {name}")).collect();
    let ends = |c| c == ' ';
    let text = text.replace("@COMMANDS@", commands.trim_end_matches(ends));
    Some(text.replace("@PROGRAMS@", &format!("gdrcore{programs}")))
}
