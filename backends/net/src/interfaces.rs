//! The interfaces of this machine with their addresses (getifaddrs(3), which allocates), for
//! programs that list them at their start.

use crate::addr::{Endpoint, ROCE_PORT};
use core::ffi::CStr;

/// An interface with one of its addresses.
pub struct Interface<'a> {
    /// The interface's name.
    pub name: &'a CStr,
    /// IFF_UP, IFF_RUNNING, ... (netdevice(7)).
    pub flags: u32,
    /// The address; `None`: this entry is of another family.
    pub at: Option<Endpoint>,
}

impl Interface<'_> {
    /// Whether it was switched on.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// The interface's number, 0 if it is gone.
    pub fn index(&self) -> u32 {
        // SAFETY: a C string.
        unsafe { libc::if_nametoindex(self.name.as_ptr()) }
    }
}

/// Passes each interface to `f`, once for each address, in the order of the system. False: the
/// system gives no list.
pub fn for_each(mut f: impl FnMut(&Interface<'_>)) -> bool {
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the call fills in a list that is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return false;
    }
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an element of the list that getifaddrs made.
        let i = unsafe { &*next };
        next = i.ifa_next;
        // SAFETY: a name of the list, NUL-terminated; the list lives until the end of the loop.
        let name = unsafe { CStr::from_ptr(i.ifa_name) };
        // SAFETY: an address of the list.
        f(&Interface { name, flags: i.ifa_flags, at: unsafe { endpoint(i.ifa_addr) } });
    }
    // SAFETY: the list that getifaddrs made, not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    true
}

/// # Safety
/// NULL, or a socket address of its family's length.
unsafe fn endpoint(at: *const libc::sockaddr) -> Option<Endpoint> {
    if at.is_null() {
        return None;
    }
    // SAFETY: not null; every socket address begins with its family.
    match i32::from(unsafe { (*at).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family.
            let a = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Endpoint::v4(a.sin_addr.s_addr.to_ne_bytes(), ROCE_PORT))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family.
            let a = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Endpoint::new(a.sin6_addr.s6_addr, a.sin6_scope_id, ROCE_PORT))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed_with_its_address() {
        let mut seen = false;
        assert!(for_each(|i| {
            let own = i.at.and_then(|at| at.to_v4()) == Some([127, 0, 0, 1]);
            seen |= own && i.name == c"lo" && i.is_up() && i.index() > 0;
        }));
        assert!(seen);
    }
}
