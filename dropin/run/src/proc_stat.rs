//! A process or thread in the words of the kernel (proc_pid_stat(5)).

/// The file `stat` of a process or thread.
pub struct Stat {
    /// Its name.
    pub name: String,
    /// The fields behind the name, with blanks between them; the first one is the state.
    fields: String,
}

impl Stat {
    /// Reads a file of procfs. `None`: it is gone, or no such file.
    pub fn read(path: &str) -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // A name may contain anything, a bracket included.
        let (head, rest) = text.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_string();
        Some(Stat { name, fields: rest.to_string() })
    }

    fn field(&self, n: usize) -> Option<&str> {
        self.fields.split(' ').nth(n)
    }

    /// Its state, a letter.
    pub fn state(&self) -> Option<char> {
        self.field(0)?.chars().next()
    }

    /// Its parent.
    pub fn parent(&self) -> Option<u32> {
        self.field(1)?.parse().ok()
    }

    /// Ticks of CPU time that it has used, in user space and in the kernel.
    pub fn ticks(&self) -> Option<u64> {
        let ticks = |n: usize| self.field(n)?.parse::<u64>().ok();
        Some(ticks(11)? + ticks(12)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let stat = Stat::parse("7 (a) S (b) R 3 7 7 0 -1 0 1 2 3 4 50 60 0 0 20\n").unwrap();
        assert_eq!(stat.name, "a) S (b");
        assert_eq!((stat.state(), stat.parent(), stat.ticks()), (Some('R'), Some(3), Some(110)));
        assert!(Stat::parse("").is_none() && Stat::parse("7 name R").is_none());
        assert_eq!(Stat::parse("7 (a) R").unwrap().ticks(), None);
    }

    #[test]
    fn this_process_has_one() {
        let own = Stat::read("/proc/self/stat").expect("procfs");
        assert!(own.parent().is_some() && own.ticks().is_some());
    }
}
