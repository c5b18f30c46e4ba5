//! Links between the engines of a loopback device.
//!
//! A queue pair that is connected to one of another engine makes the link to that engine. Each
//! datagram and DC request may go to another engine, so an address handle makes all links.

use super::engines::DeviceState;
use super::SoftDevice;
use crate::rights;
use crate::soft::siblings::Siblings;
use crate::soft::SoftEngine;
use gdrcore_core::error::Result;

type Numbered = (usize, &'static SoftEngine);

impl SoftDevice {
    /// Makes the link from the engine `k` to the engine that has a QPN, if that is another engine
    /// and exists, before a queue pair is connected to the QPN. Not under [`SoftDevice::control`].
    ///
    /// # Errors
    /// [`gdrcore_core::Error::OwnerDead`]; those of [`SoftEngine::link_sibling`].
    pub(super) fn link_to(&self, k: usize, qpn: u32) -> Result<()> {
        let Some(siblings) = &self.plan.siblings else { return Ok(()) };
        let of = siblings.engine_of(qpn).filter(|&of| of != k);
        let Some((of, other)) = of.and_then(|of| Some((of, self.engines.get(of)?))) else {
            return Ok(());
        };
        let _control = self.control()?;
        link(siblings, (k, self.existing_engine(k)?), (of, other))
    }

    /// Links all engines with each other, and later each engine that is made, before an address
    /// handle is made. The caller holds [`SoftDevice::control`].
    ///
    /// # Errors
    /// Those of [`SoftEngine::link_sibling`].
    pub(super) fn link_all(&self, control: &mut DeviceState) -> Result<()> {
        if self.plan.siblings.is_some() && !control.links_all {
            for engine in self.engines.numbered() {
                self.link_with_others(engine)?;
            }
            control.links_all = true;
        }
        Ok(())
    }

    /// Links an engine with all others that are made, in both directions.
    ///
    /// # Errors
    /// Those of [`SoftEngine::link_sibling`].
    pub(super) fn link_with_others(&self, engine: Numbered) -> Result<()> {
        let Some(siblings) = &self.plan.siblings else { return Ok(()) };
        for other in self.engines.numbered().filter(|(k, _)| *k != engine.0) {
            link(siblings, engine, other)?;
            link(siblings, other, engine)?;
        }
        Ok(())
    }
}

/// Makes the link from one engine to another, if there is none. The first end sends its memory
/// before the other end learns of the link, so that the other end finds the memory at once.
fn link(siblings: &Siblings, from: Numbered, to: Numbered) -> Result<()> {
    if from.1.is_linked(siblings, to.0) {
        return Ok(());
    }
    let [here, there] = rights::pair()?;
    from.1.link_sibling(siblings, to.0, here.into())?;
    to.1.admit_sibling(from.0, there.into());
    Ok(())
}
