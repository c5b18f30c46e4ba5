//! Asynchronous events of the port and of the device that the program has not taken.

use crate::device::async_event::{PORT_ACTIVE, PORT_ERR};

/// Each event once. A link may go down and up many times before the program looks: then it gets
/// both events, that of the present state last.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortEvents {
    bits: u32,
    is_down: bool,
}

impl PortEvents {
    /// Adds an event (one of [`crate::device::async_event`]).
    pub fn raise(&mut self, event: u32) {
        self.bits |= 1 << event;
        self.is_down = event == PORT_ERR || self.is_down && event != PORT_ACTIVE;
    }

    /// Whether there is one.
    pub fn any(&self) -> bool {
        self.bits != 0
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<u32> {
        let former = if self.is_down { PORT_ACTIVE } else { PORT_ERR };
        let event = match self.bits {
            0 => return None,
            bits if bits & 1 << former != 0 => former,
            bits => bits.trailing_zeros(),
        };
        self.bits &= !(1 << event);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::async_event::GID_CHANGE;
    use std::vec::Vec;

    #[test]
    fn the_present_state_comes_last() {
        let taken = |raised: &[u32]| -> Vec<u32> {
            let mut events = PortEvents::default();
            raised.iter().for_each(|&e| events.raise(e));
            assert_eq!(events.any(), !raised.is_empty());
            let all = core::iter::from_fn(|| events.take()).collect();
            assert!(!events.any());
            all
        };
        let (up, down) = (PORT_ACTIVE, PORT_ERR);
        assert_eq!(taken(&[]), []);
        assert_eq!(taken(&[down]), [down]);
        assert_eq!(taken(&[down, up]), [down, up]);
        assert_eq!(taken(&[down, up, GID_CHANGE, down]), [up, down, GID_CHANGE]);
        assert_eq!(taken(&[GID_CHANGE, down, up, down, up]), [down, up, GID_CHANGE]);
    }
}
