//! Handles of a session's objects, made as those of a device ([`gdrcore_core::pool`]).

use gdrcore_core::error::Result;
use gdrcore_core::pool::{handle_of, index_of, stale};
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;
use std::collections::VecDeque;

/// The objects of one kind. A handle is stale once its object is gone, and is of no other table.
#[derive(Debug)]
pub struct Table<T> {
    tag: u8,
    most: u32,
    first: u32,
    slots: Vec<(u32, Option<T>)>,
    /// Indexes that are free, the oldest first, so that generations last.
    free: VecDeque<u32>,
}

impl<T> Table<T> {
    /// A table of at most so many objects. `first`: the first generation of its indexes; tables of
    /// different sessions have different ones.
    pub fn new(tag: u8, most: u32, first: u32) -> Table<T> {
        Table { tag, most, first, slots: Vec::new(), free: VecDeque::new() }
    }

    /// The handle of the next object.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::NoMemory`]: there are as many as there may be.
    pub fn next_handle(&mut self) -> Result<Handle> {
        if self.free.is_empty() && self.slots.len() < self.most as usize {
            self.free.push_back(self.slots.len() as u32);
            self.slots.push((self.first, None));
        }
        let &index = self.free.front().ok_or_else(|| {
            refuse!(NoMemory, "the session has {} objects of this kind, its most", self.most)
        })?;
        Ok(self.handle(index as usize))
    }

    fn handle(&self, index: usize) -> Handle {
        handle_of(self.slots[index].0, self.tag, index)
    }

    /// Adds an object under the handle of [`Table::next_handle`], which it returns.
    ///
    /// # Errors
    /// As [`Table::next_handle`].
    pub fn add(&mut self, object: T) -> Result<Handle> {
        let handle = self.next_handle()?;
        self.free.pop_front();
        self.slots[index_of(handle)].1 = Some(object);
        Ok(handle)
    }

    /// Makes an object, if there is room for it, and adds it.
    ///
    /// # Errors
    /// As [`Table::next_handle`]; those of `make`.
    pub fn make(&mut self, make: impl FnOnce() -> Result<T>) -> Result<Handle> {
        self.next_handle()?;
        self.add(make()?)
    }

    /// Removes an object once `end` has ended it.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`]; those of `end`.
    pub fn end(&mut self, h: Handle, end: impl FnOnce(&T) -> Result<()>) -> Result<T> {
        end(self.get(h)?)?;
        self.remove(h)
    }

    fn find(&self, h: Handle) -> Result<usize> {
        let index = index_of(h);
        match self.slots.get(index) {
            Some((_, Some(_))) if self.handle(index) == h => Ok(index),
            _ => Err(stale(self.tag, h)),
        }
    }

    /// An object.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub fn get(&self, h: Handle) -> Result<&T> {
        let index = self.find(h)?;
        self.slots[index].1.as_ref().ok_or_else(|| stale(self.tag, h))
    }

    /// As [`Table::get`].
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub fn get_mut(&mut self, h: Handle) -> Result<&mut T> {
        let index = self.find(h)?;
        self.slots[index].1.as_mut().ok_or_else(|| stale(self.tag, h))
    }

    /// The object at an index, with its handle.
    pub fn at(&self, index: usize) -> Option<(Handle, &T)> {
        let object = self.slots.get(index)?.1.as_ref()?;
        Some((self.handle(index), object))
    }

    /// Removes an object.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub fn remove(&mut self, h: Handle) -> Result<T> {
        let index = self.find(h)?;
        let slot = &mut self.slots[index];
        slot.0 = slot.0.wrapping_add(1);
        self.free.push_back(index as u32);
        slot.1.take().ok_or_else(|| stale(self.tag, h))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All handles.
    pub fn handles(&self) -> Vec<Handle> {
        (0..self.slots.len())
            .filter(|&i| self.slots[i].1.is_some())
            .map(|i| self.handle(i))
            .collect()
    }

    /// All objects.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|(_, object)| object.as_mut())
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, object)| object.as_ref())
    }
}

/// A copy of what a session's table holds, for the tenant: the handles come from the router.
#[derive(Debug)]
pub struct ClientTable<T>(Vec<Option<(Handle, T)>>);

impl<T> Default for ClientTable<T> {
    fn default() -> Self {
        ClientTable(Vec::new())
    }
}

impl<T> ClientTable<T> {
    /// Adds an object under the router's handle. Returns the one that it replaces: of the same
    /// handle, or one that the router has ended, and another thread is about to remove.
    pub fn add(&mut self, h: Handle, object: T) -> Option<T> {
        let index = index_of(h);
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].replace((h, object)).map(|(_, before)| before)
    }

    /// All handles.
    pub fn handles(&self) -> Vec<Handle> {
        self.0.iter().flatten().map(|(h, _)| *h).collect()
    }

    /// An object.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    #[inline]
    pub fn get(&self, h: Handle) -> Result<&T> {
        match self.0.get(index_of(h)) {
            Some(Some((known, object))) if *known == h => Ok(object),
            _ => Err(stale(0, h)),
        }
    }

    /// Whether there is an object of this handle.
    pub fn has(&self, h: Handle) -> bool {
        matches!(self.0.get(index_of(h)), Some(Some((known, _))) if *known == h)
    }

    /// Removes an object.
    pub fn remove(&mut self, h: Handle) -> Option<T> {
        if !self.has(h) {
            return None;
        }
        self.0.get_mut(index_of(h)).and_then(Option::take).map(|(_, object)| object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::error::Error;

    #[test]
    fn handles_are_stale_once_their_object_is_gone_and_of_one_table() {
        let mut qps = Table::new(5, 2, 100);
        let mut others = Table::new(5, 2, 900);
        let mut cqs = Table::new(4, 2, 100);
        let h = qps.add('a').unwrap();
        assert_eq!(qps.get(h), Ok(&'a'));
        let (other, cq) = (others.add('x').unwrap(), cqs.add('x').unwrap());
        for foreign in [other, cq, 0, 1, u64::MAX, h ^ 1, h ^ (1 << 32)] {
            assert_eq!(qps.get(foreign), Err(Error::StaleHandle), "{foreign:#x}");
            assert_eq!(qps.remove(foreign), Err(Error::StaleHandle), "{foreign:#x}");
        }
        assert_eq!(qps.remove(h), Ok('a'));
        assert_eq!((qps.get(h), qps.len()), (Err(Error::StaleHandle), 0));
        let again = qps.add('b').unwrap();
        assert_ne!(again, h);
        assert_eq!(qps.handles(), [again]);
        qps.add('c').unwrap();
        assert_eq!(qps.add('d'), Err(Error::NoMemory), "its most");
    }

    #[test]
    fn a_mirror_has_what_the_router_named() {
        let mut mirror = ClientTable::default();
        assert_eq!(mirror.add(7 << 32 | 3, 'a'), None);
        assert_eq!(mirror.get(7 << 32 | 3), Ok(&'a'));
        assert_eq!(mirror.get(8 << 32 | 3), Err(Error::StaleHandle));
        assert_eq!((mirror.remove(8 << 32 | 3), mirror.remove(7 << 32 | 3)), (None, Some('a')));
        assert_eq!(mirror.get(7 << 32 | 3), Err(Error::StaleHandle));
        mirror.add(7 << 32 | 3, 'b');
        assert_eq!(mirror.add(8 << 32 | 3, 'c'), Some('b'), "not lost, whoever removes it");
        assert_eq!((mirror.remove(7 << 32 | 3), mirror.handles()), (None, vec![8 << 32 | 3]));
    }
}
