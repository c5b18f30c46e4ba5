//! Remote keys that have ended, as far as this process knows: of its own regions and windows, and
//! those that its queue pairs have invalidated at their peers.

use crate::queues::QpKey;
use crate::sites::Site;
use gdrcore_core::verbs::types::{wr_opcode, SendWr};
use std::collections::HashMap;

/// Most keys that are kept of each kind.
const KEYS_MAX: usize = 1 << 16;

/// The remote keys that have ended, each with the place.
#[derive(Default)]
pub struct Keys {
    /// Of this process, by device.
    own: HashMap<(usize, u32), Site>,
    /// Of peers, by the queue pair that has invalidated them.
    theirs: HashMap<(QpKey, u32), Site>,
}

fn keep<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Site>, key: K, site: Site) {
    if map.len() < KEYS_MAX {
        map.insert(key, site);
    }
}

impl Keys {
    /// A key of this process leads to memory from now on.
    pub fn begin(&mut self, device: usize, rkey: u32) {
        self.own.remove(&(device, rkey));
    }

    /// A key of this process has ended.
    pub fn end(&mut self, device: usize, rkey: u32, site: Site) {
        keep(&mut self.own, (device, rkey), site);
    }

    /// A queue pair has another connection, or has ended.
    pub fn forget(&mut self, qp: QpKey) {
        self.theirs.retain(|(of, _), _| *of != qp);
    }

    /// A device is closed.
    pub fn forget_device(&mut self, device: usize) {
        self.own.retain(|(of, _), _| *of != device);
        self.theirs.retain(|(of, _), _| of.0 != device);
    }

    /// Where a key has ended that a request of a queue pair names. `is_own`: its peer is of this
    /// process.
    pub fn ended(&self, qp: QpKey, is_own: bool, rkey: u32) -> Option<Site> {
        let own = self.own.get(&(qp.0, rkey)).filter(|_| is_own);
        own.or_else(|| self.theirs.get(&(qp, rkey))).copied()
    }

    /// A queue pair posts a request, which may end a key.
    pub fn posted(&mut self, qp: QpKey, is_own: bool, wr: &SendWr, site: Site) {
        match wr.opcode {
            wr_opcode::LOCAL_INV => self.end(qp.0, wr.imm_data, site),
            wr_opcode::SEND_WITH_INV if is_own => self.end(qp.0, wr.imm_data, site),
            wr_opcode::SEND_WITH_INV => keep(&mut self.theirs, (qp, wr.imm_data), site),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_ended_until_it_begins_anew() {
        let (mut keys, qp) = (Keys::default(), (1, 0x11));
        keys.end(1, 7, 40);
        assert_eq!((keys.ended(qp, true, 7), keys.ended(qp, false, 7)), (Some(40), None));
        assert_eq!(keys.ended((2, 0x11), true, 7), None, "of another device");
        keys.begin(1, 7);
        assert_eq!(keys.ended(qp, true, 7), None);
        // SAFETY: zeroes are a value of each field.
        let mut wr: SendWr = unsafe { core::mem::zeroed() };
        (wr.opcode, wr.imm_data) = (wr_opcode::SEND_WITH_INV, 9);
        keys.posted(qp, false, &wr, 50);
        assert_eq!((keys.ended(qp, false, 9), keys.ended((1, 0x12), true, 9)), (Some(50), None));
        keys.forget(qp);
        assert_eq!(keys.ended(qp, false, 9), None);
    }
}
