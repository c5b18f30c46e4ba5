//! Reads the rules of `--fault`, and refuses those that are wrong before the program runs.

use crate::arguments::Arguments;
use gdrcore_calls::may_fail;
use gdrcore_calls::options::{FAULTS, FAULT_LOG};
use gdrcore_core::inject::Faults;
use std::ffi::OsString;
use std::path::Path;

/// Joins the rules of all options, with the contents of the files that they name, and makes the
/// path of the log absolute.
///
/// # Errors
/// In words: a file cannot be read, or a rule is wrong, with its line and column.
pub fn begin(a: &mut Arguments) -> Result<(), String> {
    let given = a.environment.iter().filter(|(name, _)| *name == FAULTS.variable);
    let all: Vec<String> = given.map(|(_, value)| rules(value)).collect::<Result<_, _>>()?;
    if !all.is_empty() {
        a.environment.retain(|(name, _)| *name != FAULTS.variable);
        let all = all.join("\n");
        // Each is right by itself; together they may be too many.
        check("--fault", &all)?;
        a.environment.push((FAULTS.variable, all.into()));
    }
    a.begin_file(&FAULT_LOG, |_| Ok(()))
}

/// The rules of an option: its value, or the contents of the file behind `@`.
fn rules(value: &OsString) -> Result<String, String> {
    let text = value.to_str().ok_or_else(|| format!("--fault {}: not UTF-8", value.display()))?;
    let Some(file) = text.strip_prefix('@') else {
        check(&format!("--fault '{text}'"), text)?;
        return Ok(text.into());
    };
    let read = std::fs::read_to_string(Path::new(file));
    let rules = read.map_err(|e| format!("--fault {file}: {e}"))?;
    check(file, &rules)?;
    Ok(rules)
}

fn check(place: &str, rules: &str) -> Result<(), String> {
    Faults::parse(rules, may_fail).map(drop).map_err(|e| format!("{place}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_calls::options::SEED;

    fn of(options: &[(&'static str, &str)]) -> Result<Arguments, String> {
        let environment = options.iter().map(|(name, value)| (*name, value.into())).collect();
        let mut a = Arguments { environment, ..Arguments::default() };
        begin(&mut a).map(|()| a)
    }

    #[test]
    fn rules_of_options_and_files_are_joined_and_checked() {
        let file = std::env::temp_dir().join(format!("gdrcore-run-faults-{}", std::process::id()));
        std::fs::write(&file, "# two\nloss nth 3\nreorder 2 every 7 # often\n").unwrap();
        let at = format!("@{}", file.display());
        let a = of(&[
            (FAULTS.variable, "corrupt rate 1%"),
            (SEED.variable, "7"),
            (FAULTS.variable, &at),
        ])
        .unwrap();
        let rules = "corrupt rate 1%\n# two\nloss nth 3\nreorder 2 every 7 # often\n";
        assert_eq!(a.environment, [(SEED.variable, "7".into()), (FAULTS.variable, rules.into())]);
        assert_eq!(Faults::parse(rules, may_fail).unwrap().rules().len(), 3);
        std::fs::write(&file, "loss\nloss twice\n").unwrap();
        let why = of(&[(FAULTS.variable, &at)]).unwrap_err();
        let wanted = format!("{}: line 2, column 6: 'twice'", file.display());
        assert!(why.starts_with(&wanted), "{why}");
        std::fs::remove_file(&file).unwrap();
        let why = of(&[(FAULTS.variable, &at)]).unwrap_err();
        assert!(why.contains(file.to_str().unwrap()), "{why}");
        let why = of(&[(FAULTS.variable, "loss; call ibv_reg errno ENOMEM")]).unwrap_err();
        assert!(why.contains("column 12: 'ibv_reg': no call"), "{why}");
        let many = vec![(FAULTS.variable, "loss; loss; loss; loss; loss"); 7];
        let why = of(&many).unwrap_err();
        assert!(why.contains("32 rules"), "{why}");
        let a = of(&[(FAULT_LOG.variable, "here.log")]).unwrap();
        assert_eq!(a.environment[0].1, std::path::absolute("here.log").unwrap().as_os_str());
    }
}
