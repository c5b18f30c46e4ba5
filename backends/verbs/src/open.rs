//! Opens a NIC: chooses device, port and GID, or refuses with a reason.

use core::ffi::c_char;

use crate::abi::{link, GidEntry, Module, Opened, Port, Source, Text, NAME_MAX};
use crate::errno;
use crate::name::{address, NicName, Which};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::wire::grh::is_link_local;

/// Limit of the GIDs of a port that are read: an address vector has 8 bits for the index.
const GIDS_MAX: usize = 256;
/// Limit of the devices that are searched for an address.
const DEVICES_MAX: u32 = 256;

/// An opened device, and the GID by which it sends.
pub struct Chosen {
    /// The device.
    pub opened: Opened,
    /// Its name.
    pub device: DeviceName,
    /// The port.
    pub port: Port,
    /// Port number and GID index.
    pub source: Source,
    /// The GID.
    pub gid: GidEntry,
}

/// A device's name as C has it.
pub type DeviceName = [c_char; NAME_MAX];

/// Opens the device that `name` describes. `why` gets the reason if none fits.
///
/// # Errors
/// [`Error::NoDevice`]: no such device or port; [`Error::AddressNotLocal`]: no NIC has the address,
/// or the port has no suitable GID; [`Error::Unsupported`]: not RoCE; else libibverbs' error.
pub fn open(module: &Module, name: &NicName<'_>, why: &mut Text) -> Result<Chosen> {
    match name.which {
        Which::Name(device) => {
            let mut text: DeviceName = [0; NAME_MAX];
            for (to, from) in text.iter_mut().zip(device.bytes().take(NAME_MAX - 1)) {
                *to = from as c_char;
            }
            open_named(module, &text, device, name, None, why)
        }
        Which::Address(gid) => {
            for index in 0..DEVICES_MAX {
                let mut text: DeviceName = [0; NAME_MAX];
                // SAFETY: both pointers are to live, writable values.
                if unsafe { (module.device_name)(index, &mut text, why) } != 0 {
                    break;
                }
                match open_named(module, &text, "", name, Some(gid), why) {
                    Err(Error::AddressNotLocal | Error::Unsupported | Error::NoDevice) => {}
                    other => return other,
                }
            }
            why.set(format_args!(
                "no RDMA device has a RoCE v2 GID {}; `ibv_devinfo -v` \
                 lists GIDs, `ip address` the addresses they follow from",
                address(gid)
            ));
            Err(Error::AddressNotLocal)
        }
    }
}

/// Opens one device and chooses among its ports. Closes it again if none fits.
fn open_named(
    module: &Module,
    device: &DeviceName,
    shown: &str,
    name: &NicName<'_>,
    wanted: Option<[u8; 16]>,
    why: &mut Text,
) -> Result<Chosen> {
    let mut opened = core::mem::MaybeUninit::<Opened>::uninit();
    // SAFETY: live pointers; `device` is terminated, as its last byte is never written.
    let rc = unsafe { (module.open)(device, opened.as_mut_ptr(), why) };
    errno(rc)?;
    // SAFETY: the module wrote it, as it succeeded.
    let opened = unsafe { opened.assume_init() };
    let ports = match name.port {
        Some(port) => port..=port,
        None => 1..=opened.ports.min(255),
    };
    let mut last = Error::NoDevice;
    why.set(format_args!("{shown} has no ports"));
    for number in ports {
        match port(module, &opened, number, shown, name.gid_index, wanted, why) {
            Ok((port, gid)) => {
                let source = Source { port: number, gid_index: gid.index };
                return Ok(Chosen { opened, device: *device, port, source, gid });
            }
            Err(e) => last = e,
        }
    }
    // SAFETY: opened above, and nothing was made on it.
    unsafe { (module.close)(opened.context, opened.channel) };
    Err(last)
}

/// Checks whether the port is usable, and chooses its GID.
fn port(
    module: &Module,
    opened: &Opened,
    number: u32,
    shown: &str,
    index: Option<u32>,
    wanted: Option<[u8; 16]>,
    why: &mut Text,
) -> Result<(Port, GidEntry)> {
    let mut port = Port::default();
    // SAFETY: an open context and a writable struct.
    let rc = unsafe { (module.port)(opened.context, number, &mut port) };
    if rc != 0 {
        why.set(format_args!("{shown} has ports 1 to {}, not {number}", opened.ports));
        return Err(Error::NoDevice);
    }
    if port.link != link::ETHERNET {
        let speaks = if port.link == link::IWARP { "iWARP" } else { "InfiniBand" };
        why.set(format_args!(
            "{shown} port {number} speaks {speaks}; gdrcore addresses its peers by RoCE v2 GIDs"
        ));
        // No words here: `why` has them.
        return Err(Error::Unsupported);
    }
    let mut table = [GidEntry::default(); GIDS_MAX];
    let mut count = 0;
    // SAFETY: an open context; `table` has room for so many, `count` is writable.
    let rc = unsafe {
        (module.gids)(opened.context, number, table.as_mut_ptr(), GIDS_MAX as u32, &mut count)
    };
    errno(rc).inspect_err(|e| {
        why.set(format_args!("{shown} port {number}: its GIDs cannot be read: {e}"))
    })?;
    let gid = choose(table.get(..count as usize).unwrap_or_default(), index, wanted)
        .inspect_err(|no| explain(*no, shown, number, port.active != 0, why))
        .map_err(|_| Error::AddressNotLocal)?;
    if port.active == 0 {
        why.set(format_args!(
            "{shown} port {number} is down; bring its network interface up (`ip link set … up`)"
        ));
        return Err(Error::NoDevice);
    }
    Ok((port, gid))
}

/// Why no GID was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum No {
    /// The table has no entry at the requested index.
    Empty(u32),
    /// The entry at the requested index is not of RoCE v2.
    NotV2(u32),
    /// The entry at the requested index is another address than the requested one.
    Other(u32),
    /// The table has this many entries, but of other types.
    NoV2(u32),
    /// The table is empty.
    Nothing,
    /// No entry is the requested address.
    Unknown,
}

fn explain(no: No, shown: &str, port: u32, active: bool, why: &mut Text) {
    let state = if active { "" } else { " (the port is down)" };
    match no {
        No::Empty(i) => why.set(format_args!(
            "{shown} port {port} has no GID at index {i}{state}; `ibv_devinfo -v` lists them"
        )),
        No::NotV2(i) => why.set(format_args!(
            "GID {i} of {shown} port {port} is not of type RoCE v2; `ibv_devinfo -v` names the \
             types, without an index the first that fits is taken"
        )),
        No::Other(i) => why.set(format_args!("GID {i} of {shown} port {port} is another address")),
        No::NoV2(n) => why.set(format_args!(
            "{shown} port {port} has {n} GIDs, none of type RoCE v2{state}; rdma_cm's \
             default_roce_mode or the driver's setting chooses the types"
        )),
        No::Nothing => why.set(format_args!(
            "{shown} port {port} has no GID{state}; GIDs follow from \
             addresses: give its network interface one (`ip address add …`)"
        )),
        No::Unknown => {
            why.set(format_args!("no GID of {shown} port {port} is this address{state}"))
        }
    }
}

/// Chooses the GID to send by: the requested one, else the first IPv4 one, else the first global
/// IPv6 one, else the first.
fn choose(
    table: &[GidEntry],
    index: Option<u32>,
    wanted: Option<[u8; 16]>,
) -> Result<GidEntry, No> {
    let mut used = table.iter().copied().filter(|e| e.gid != [0; 16] && e.index < GIDS_MAX as u32);
    if let Some(i) = index {
        let entry = used.find(|e| e.index == i).ok_or(No::Empty(i))?;
        if entry.roce_v2 == 0 {
            return Err(No::NotV2(i));
        }
        if wanted.is_some_and(|w| w != entry.gid) {
            return Err(No::Other(i));
        }
        return Ok(entry);
    }
    let mut best: Option<(u32, GidEntry)> = None;
    let mut others = 0;
    for entry in used {
        if entry.roce_v2 == 0 {
            others += 1;
            continue;
        }
        if wanted.is_some_and(|w| w != entry.gid) {
            continue;
        }
        let rank = rank(&entry.gid);
        if best.is_none_or(|(r, _)| rank < r) {
            best = Some((rank, entry));
        }
    }
    match (best, wanted, others) {
        (Some((_, entry)), ..) => Ok(entry),
        (None, Some(_), _) => Err(No::Unknown),
        (None, None, 0) => Err(No::Nothing),
        (None, None, n) => Err(No::NoV2(n)),
    }
}

/// The rank of a GID; lower is better.
fn rank(gid: &[u8; 16]) -> u32 {
    let ip = core::net::Ipv6Addr::from(*gid);
    match ip.to_ipv4_mapped() {
        Some(_) => 0,
        None if is_link_local(gid) => 2,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: [u8; 16] = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xFF, 0xFE, 0, 0, 1];
    const GLOBAL: [u8; 16] = [0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    const V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1];

    fn chosen(
        entries: &[([u8; 16], u32)],
        index: Option<u32>,
        wanted: Option<[u8; 16]>,
    ) -> Result<u32, No> {
        let entry =
            |(index, &(gid, roce_v2)): (u32, &_)| GidEntry { gid, index, roce_v2, interface: 7 };
        let table: Vec<GidEntry> = (0..).zip(entries).map(entry).collect();
        choose(&table, index, wanted).map(|e| e.index)
    }

    #[test]
    fn ipv4_before_global_ipv6_before_link_local() {
        assert_eq!(chosen(&[(LOCAL, 1), (GLOBAL, 1), (V4, 1)], None, None), Ok(2));
        assert_eq!(chosen(&[(LOCAL, 1), (GLOBAL, 1), (V4, 0)], None, None), Ok(1));
        assert_eq!(chosen(&[(LOCAL, 0), (LOCAL, 1)], None, None), Ok(1));
    }

    #[test]
    fn an_index_is_taken_as_it_is_but_only_with_the_right_type() {
        let t = [(LOCAL, 0), (LOCAL, 1), (V4, 0), (V4, 1)];
        assert_eq!(chosen(&t, Some(1), None), Ok(1));
        assert_eq!(chosen(&t, Some(2), None), Err(No::NotV2(2)));
        assert_eq!(chosen(&t, Some(4), None), Err(No::Empty(4)));
        assert_eq!(chosen(&t, Some(1), Some(V4)), Err(No::Other(1)));
        assert_eq!(chosen(&t, Some(3), Some(V4)), Ok(3));
    }

    #[test]
    fn a_refusal_has_its_reason() {
        assert_eq!(chosen(&[], None, None), Err(No::Nothing));
        assert_eq!(chosen(&[(LOCAL, 0), (V4, 0)], None, None), Err(No::NoV2(2)));
        assert_eq!(chosen(&[(LOCAL, 1)], None, Some(V4)), Err(No::Unknown));
        for no in
            [No::Empty(300), No::NotV2(1), No::Other(2), No::NoV2(3), No::Nothing, No::Unknown]
        {
            let mut why = Text::new();
            explain(no, "rxe0", 1, false, &mut why);
            assert!(why.as_str().contains("rxe0 port 1"), "{}", why.as_str());
        }
    }
}
