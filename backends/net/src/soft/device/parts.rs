//! Objects with a part in several engines: CQs, whose parts are rings, and completion channels.
//!
//! The parts are a list ([`Branches`]) that begins with the program's own object. It only grows
//! until the object ends.

use super::{program_handle, SoftDevice, MAX_ENGINES};
use crate::soft::SoftEngine;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::verbs::shared::Branches;
use gdrcore_core::verbs::types::Handle;

/// A part: the number of its engine, the engine, and the handle there.
pub(super) type Part = (usize, &'static SoftEngine, Handle);

/// A kind of objects with parts.
pub(super) struct PartKind {
    /// The argument that names the object.
    pub argument: &'static str,
    /// The kind's name in words.
    pub name: &'static str,
    /// The place of a part in the list.
    pub links: fn(&'static SoftEngine, Handle) -> Result<&'static Branches>,
}

impl SoftDevice {
    /// The parts of an object, the object's own part first.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`]: also of a branch, whose handle no program is given.
    pub(super) fn parts<'s>(
        &'s self,
        kind: &'static PartKind,
        h: Handle,
    ) -> Result<impl Iterator<Item = Part> + 's> {
        let own @ (_, engine, of) = self.resolve(h)?;
        if (kind.links)(engine, of)?.home() != 0 {
            let PartKind { argument, name, .. } = kind;
            return Err(refuse!(StaleHandle, "{argument} {h:#x}: no {name} of this device"));
        }
        let behind = |&(_, engine, h): &Part| {
            let next = (kind.links)(engine, h).map_or(0, Branches::next);
            (next != 0).then(|| self.resolve(next).ok()).flatten()
        };
        Ok(core::iter::successors(Some(own), behind).take(MAX_ENGINES))
    }

    /// The part of an object in an engine. If there is none, `branch` makes it from the object's
    /// own part and the engine. The caller holds [`SoftDevice::control`].
    ///
    /// # Errors
    /// As [`SoftDevice::parts`], and those of `branch`.
    pub(super) fn part_in(
        &self,
        kind: &'static PartKind,
        k: usize,
        h: Handle,
        branch: impl FnOnce(Part, &'static SoftEngine) -> Result<Handle>,
    ) -> Result<Handle> {
        if let Some((_, _, part)) = self.parts(kind, h)?.find(|(of, _, _)| *of == k) {
            return Ok(part);
        }
        let own @ (_, engine, first) = self.resolve(h)?;
        let of = self.existing_engine(k)?;
        let branch = branch(own, of)?;
        let links = (kind.links)(engine, first)?;
        (kind.links)(of, branch)?.set_next(links.next());
        links.set_next(program_handle(k, branch));
        Ok(branch)
    }

    /// Ends all parts of an object, the object's own part last, or no part. The caller holds
    /// [`SoftDevice::control`].
    ///
    /// # Errors
    /// As [`SoftDevice::parts`], those of `may_end`, and those of `end`.
    pub(super) fn end_parts(
        &self,
        kind: &'static PartKind,
        h: Handle,
        may_end: impl Fn(&SoftEngine, Handle) -> Result<()>,
        end: impl Fn(&SoftEngine, Handle) -> Result<()>,
    ) -> Result<()> {
        let parts: heapless::Vec<Part, MAX_ENGINES> = self.parts(kind, h)?.collect();
        for (_, engine, part) in &parts {
            may_end(engine, *part)?;
        }
        for at in (1..parts.len()).rev() {
            let ((_, before, behind), (_, engine, part)) = (parts[at - 1], parts[at]);
            // If a thread uses the part at this moment, this fails, and the part stays in the list.
            end(engine, part)?;
            (kind.links)(before, behind)?.set_next(0);
        }
        let (_, engine, own) = parts[0];
        end(engine, own)
    }
}
