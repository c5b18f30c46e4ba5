//! Objects that live, and where they were made.

use crate::report::Report;
use crate::rules::Rule;
use crate::sites::{is_of_librdmacm, Site, Sites};
use crate::Id;
use std::collections::{BTreeMap, HashMap};

/// Most objects that are kept.
const OBJECTS_MAX: usize = 1 << 16;

/// A remote key and its device.
pub type Rkey = (usize, u32);

/// An object.
pub(crate) struct Object {
    words: String,
    site: Site,
    /// Of regions and windows.
    pub rkey: Option<Rkey>,
}

/// Objects that live.
#[derive(Default)]
pub(crate) struct Objects(HashMap<Id, Object>);

impl Objects {
    /// Keeps a new one.
    pub fn made(&mut self, id: Id, words: String, rkey: Option<Rkey>, site: Site) {
        if self.0.len() < OBJECTS_MAX {
            self.0.insert(id, Object { words, site, rkey });
        }
    }

    /// What one is, and where it was made.
    pub fn find(&self, id: Id) -> Option<(&str, Site)> {
        self.0.get(&id).map(|object| (object.words.as_str(), object.site))
    }

    /// A window is bound, by a key of which the low 8 bits are new; returns the key.
    pub fn bound(&mut self, id: Id, low: u32) -> Option<Rkey> {
        let rkey = self.0.get_mut(&id)?.rkey.as_mut()?;
        rkey.1 = (rkey.1 & !0xff) | (low & 0xff);
        Some(*rkey)
    }

    /// Takes one out, before its address can be another's.
    pub fn take(&mut self, id: Id) -> Option<Object> {
        self.0.remove(&id)
    }

    /// Puts one back, whose destruction failed.
    pub fn put_back(&mut self, id: Id, object: Object) {
        self.0.insert(id, object);
    }

    /// A report for each place whose objects are left, of those that `are_left`, but for what
    /// librdmacm keeps for itself. `end`: where they still live.
    pub fn left(&self, sites: &Sites, are_left: impl Fn(&Id) -> bool, end: &str) -> Vec<Report> {
        let mut places: BTreeMap<Site, (usize, &str)> = BTreeMap::new();
        for (_, object) in self.0.iter().filter(|(id, _)| are_left(id)) {
            places.entry(object.site).or_insert((0, &object.words)).0 += 1;
        }
        let is_its_own = |site| is_of_librdmacm(&sites.frames(site));
        let left = places.into_iter().filter(|(site, _)| !is_its_own(*site));
        left.map(|(site, (n, words))| Report {
            rule: Rule::ObjectLeft,
            words: match n {
                1 => format!("{words} lives {end}"),
                n => format!("{n} objects, {words} among them, live {end}"),
            },
            site,
            noticed: None,
        })
        .collect()
    }

    /// Forgets those of a device.
    pub fn forget(&mut self, device: usize) {
        self.0.retain(|id, _| id.0 != device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_one_place_are_one_report() {
        let mut all = Objects::default();
        all.made((0, 8), "PD".into(), None, 1);
        all.made((0, 16), "PD".into(), None, 1);
        all.made((0, 24), "AH".into(), None, 2);
        let left = |all: &Objects| all.left(&Sites::default(), |id| id.0 == 0, "here");
        let pd = all.take((0, 8)).unwrap();
        assert_eq!(left(&all).len(), 2);
        all.put_back((0, 8), pd);
        assert_eq!((left(&all).len(), left(&all)[0].site), (2, 1));
        let words = left(&all).swap_remove(0).words;
        assert_eq!(words, "2 objects, PD among them, live here");
        assert_eq!(all.left(&Sites::default(), |id| id.0 == 1, "here").len(), 0);
        all.forget(0);
        assert_eq!(left(&all).len(), 0);
    }

    #[test]
    fn a_bound_window_has_a_key_of_its_own() {
        let mut all = Objects::default();
        all.made((1, 8), "MW".into(), Some((1, 0x1200)), 1);
        assert_eq!(all.bound((1, 8), 0xff34), Some((1, 0x1234)));
        assert_eq!(all.take((1, 8)).unwrap().rkey, Some((1, 0x1234)));
        assert_eq!(all.bound((1, 8), 1), None);
    }
}
