//! Verbs that convert numbers to text.

use core::ffi::{c_char, c_int, CStr};

const fn pick(table: &'static [&'static CStr], i: usize) -> *const c_char {
    if i < table.len() {
        table[i].as_ptr()
    } else {
        c"unknown".as_ptr()
    }
}

/// `ibv_wc_status_str`.
pub unsafe extern "C" fn wc_status_str(status: u32) -> *const c_char {
    pick(
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
            c"tag matching error",
            c"tag matching rendezvous incomplete",
        ],
        status as usize,
    )
}

/// `ibv_node_type_str`.
pub unsafe extern "C" fn node_type_str(node_type: c_int) -> *const c_char {
    pick(
        &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
            c"usNIC",
            c"usNIC UDP",
            c"unspecified",
        ],
        usize::try_from(node_type).unwrap_or(0),
    )
}

/// `ibv_port_state_str`. Tools compare the beginning.
pub unsafe extern "C" fn port_state_str(state: u32) -> *const c_char {
    pick(
        &[
            c"no state change (NOP)",
            c"PORT_DOWN",
            c"PORT_INIT",
            c"PORT_ARMED",
            c"PORT_ACTIVE",
            c"PORT_ACTIVE_DEFER",
        ],
        state as usize,
    )
}

/// `ibv_event_type_str`.
pub unsafe extern "C" fn event_type_str(event: u32) -> *const c_char {
    pick(
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
        ],
        event as usize,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_text() {
        // SAFETY: the functions return static strings.
        let say = |p: *const c_char| unsafe { CStr::from_ptr(p) }.to_str().unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(say(wc_status_str(12)), "transport retry counter exceeded");
            assert_eq!(say(wc_status_str(21)), "general error");
            assert_eq!(say(wc_status_str(u32::MAX)), "unknown");
            assert_eq!(say(event_type_str(16)), "last WQE reached");
            assert_eq!(say(port_state_str(4)), "PORT_ACTIVE");
            assert_eq!(say(node_type_str(1)), "InfiniBand channel adapter");
            assert_eq!(say(node_type_str(-1)), "unknown");
        }
    }
}
