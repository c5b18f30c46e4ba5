//! What strings reach, counted: a target that fails each string's first check finds nothing.

use gdrcore_core::counters::Counters;

/// Counts that are added up over strings.
pub trait Coverage: Default {
    /// Adds another string's.
    fn add(&mut self, other: &Self);
}

/// Those that are all of a kind.
pub trait Counts: Coverage {
    /// Whether each count is above a number.
    fn exceed(&self, number: u64) -> bool;
}

impl Coverage for () {
    fn add(&mut self, (): &()) {}
}

impl Coverage for Counters {
    fn add(&mut self, other: &Counters) {
        Counters::add(self, other);
    }
}

impl Coverage for u64 {
    fn add(&mut self, other: &u64) {
        *self += other;
    }
}

impl Counts for u64 {
    fn exceed(&self, number: u64) -> bool {
        *self > number
    }
}

impl<const N: usize> Coverage for [u64; N]
where
    [u64; N]: Default,
{
    fn add(&mut self, other: &[u64; N]) {
        self.iter_mut().zip(other).for_each(|(sum, n)| *sum += n);
    }
}

impl<const N: usize> Counts for [u64; N]
where
    [u64; N]: Default,
{
    fn exceed(&self, number: u64) -> bool {
        self.iter().all(|n| *n > number)
    }
}

/// A struct of counts.
macro_rules! counts {
    ($name:ident { $($(#[$doc:meta])* $field:ident: $t:ty,)* }) => {
        /// Coverage of strings.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $t,)* }

        impl $crate::Coverage for $name {
            fn add(&mut self, other: &Self) {
                $($crate::Coverage::add(&mut self.$field, &other.$field);)*
            }
        }

        impl $crate::Counts for $name {
            fn exceed(&self, number: u64) -> bool {
                $($crate::Counts::exceed(&self.$field, number))&&*
            }
        }
    };
}
pub(crate) use counts;
