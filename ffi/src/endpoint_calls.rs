//! C calls of the endpoint descriptor, which two programs exchange to connect, and its 128-byte
//! form on the wire.

use crate::c_consts::*;
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::{out, plain_in, sized_in, sized_out, zeroed};
use core::ffi::c_int;
use gdrcore_core::{Error, Result};
use gdrcore_net::reason;

/// Bytes on the wire.
const WIRE: usize = GDRC_ENDPOINT_WIRE_BYTES as usize;
const MAGIC: [u8; 4] = *b"GDRC";
/// Offset of each field on the wire, all big-endian. The bytes behind them are 0.
const AT_VERSION: usize = 4;
const AT_GID: usize = 8;
const AT_QPN: usize = 24;
const AT_PSN: usize = 28;
const AT_MTU: usize = 32;
const AT_QP_TYPE: usize = 36;
const AT_UDP_PORT: usize = 40;
const AT_RKEY: usize = 44;
const AT_ADDR: usize = 48;
const AT_LENGTH: usize = 56;
const AT_QKEY: usize = 64;
const AT_MAX_RD_ATOMIC: usize = 68;
const AT_FLAGS: usize = 72;
const AT_RESERVED: usize = 76;

const BITS_24: u32 = 0xff_ffff;

/// Distance between the PSNs of a QP's last connection and those of the next one. It exceeds a
/// window, so that late packets are behind the new PSNs, and is so small that many connections
/// follow before PSNs wrap (2^23).
const PSN_GAP: u32 = 1 << 16;
/// The random part of that distance.
const PSN_SPREAD: u32 = 1 << 18;

/// The first PSN of a connection of a QP whose last one ended at `former`; 0: it had none.
fn start_psn(former: u32, random: u32) -> u32 {
    let ahead =
        if former == 0 { random } else { former.wrapping_add(PSN_GAP + random % PSN_SPREAD) };
    ahead & BITS_24
}

/// Checks that the fields of the argument `name` have values that an endpoint can have.
pub(crate) fn check(e: &gdrc_endpoint, name: &str) -> Result<()> {
    let rules: [(bool, &str, u64, &str); 8] = [
        (
            e.version == GDRC_ENDPOINT_VERSION,
            "version",
            e.version.into(),
            "this library knows version 1",
        ),
        (
            e.flags & !GDRC_ENDPOINT_OWN_PORT == 0,
            "flags",
            e.flags.into(),
            "only GDRC_ENDPOINT_OWN_PORT is known",
        ),
        (e.qpn != 0 && e.qpn <= BITS_24, "qpn", e.qpn.into(), "1 to 0xffffff"),
        (
            (mtu::MTU_256..=mtu::MTU_4096).contains(&e.mtu),
            "mtu",
            e.mtu.into(),
            "a code from GDRC_MTU_256 (1) to GDRC_MTU_4096 (5)",
        ),
        (
            QP_TYPES.contains(&e.qp_type),
            "qp_type",
            e.qp_type.into(),
            "GDRC_QPT_RC (2), _UC (3), _UD (4), _XRC_SEND (9), _XRC_RECV (10), _DCI (257) \
             or _DCT (258)",
        ),
        (
            e.addr.checked_add(e.length).is_some(),
            "length",
            e.length,
            "from addr on it leaves the address space",
        ),
        (e.psn <= BITS_24, "psn", e.psn.into(), "at most 0xffffff"),
        (e.udp_port <= 0xffff, "udp_port", e.udp_port.into(), "at most 65535"),
    ];
    match rules.iter().find(|(holds, ..)| !holds) {
        None => Ok(()),
        Some((_, field, value, rule)) => Err(refuse!(Invalid, "{name}->{field} {value}: {rule}")),
    }
}
/// As [`check`], for the argument `local`: a DCT of a NIC has no number before RTR.
pub(crate) fn check_local(e: &gdrc_endpoint) -> Result<()> {
    let unnumbered = e.qpn == 0 && e.qp_type == qp_type::DCT;
    check(&gdrc_endpoint { qpn: if unnumbered { 1 } else { e.qpn }, ..*e }, "local")
}

/// Types of queue pairs. The reason above names them.
const QP_TYPES: [u32; 7] = [
    qp_type::RC,
    qp_type::UC,
    qp_type::UD,
    qp_type::XRC_SEND,
    qp_type::XRC_RECV,
    qp_type::DCI,
    qp_type::DCT,
];
const _: () = assert!(GDRC_ENDPOINT_VERSION == 1 && matches!(QP_TYPES, [2, 3, 4, 9, 10, 257, 258]));

fn pack(e: &gdrc_endpoint) -> [u8; WIRE] {
    let mut w = [0; WIRE];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(to) = w.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    };
    put(0, &MAGIC);
    put(AT_VERSION, &e.version.to_be_bytes());
    put(AT_GID, &e.gid);
    put(AT_QPN, &e.qpn.to_be_bytes());
    put(AT_PSN, &e.psn.to_be_bytes());
    put(AT_MTU, &e.mtu.to_be_bytes());
    put(AT_QP_TYPE, &e.qp_type.to_be_bytes());
    put(AT_UDP_PORT, &e.udp_port.to_be_bytes());
    put(AT_RKEY, &e.rkey.to_be_bytes());
    put(AT_ADDR, &e.addr.to_be_bytes());
    put(AT_LENGTH, &e.length.to_be_bytes());
    put(AT_QKEY, &e.qkey.to_be_bytes());
    put(AT_MAX_RD_ATOMIC, &e.max_rd_atomic.to_be_bytes());
    put(AT_FLAGS, &e.flags.to_be_bytes());
    w
}

fn unpack(w: &[u8; WIRE]) -> Result<gdrc_endpoint> {
    fn bytes<const N: usize>(w: &[u8; WIRE], at: usize) -> [u8; N] {
        let mut b = [0; N];
        if let Some(from) = w.get(at..at + N) {
            b.copy_from_slice(from);
        }
        b
    }
    let u32_at = |at| u32::from_be_bytes(bytes(w, at));
    let u64_at = |at| u64::from_be_bytes(bytes(w, at));
    if bytes::<4>(w, 0) != MAGIC {
        return Err(refuse!(
            Os(libc::EPROTO),
            "wire: it does not begin as an endpoint of gdrcore does"
        ));
    }
    let version = u32_at(AT_VERSION);
    if version != GDRC_ENDPOINT_VERSION {
        let known = GDRC_ENDPOINT_VERSION;
        return Err(refuse!(
            Os(libc::EPROTONOSUPPORT),
            "wire: version {version}, this library knows {known}"
        ));
    }
    if w.iter().skip(AT_RESERVED).any(|&b| b != 0) {
        return Err(refuse!(Os(libc::EPROTO), "wire: a reserved byte is set"));
    }
    let e = gdrc_endpoint {
        version,
        gid: bytes(w, AT_GID),
        qpn: u32_at(AT_QPN),
        psn: u32_at(AT_PSN),
        mtu: u32_at(AT_MTU),
        qp_type: u32_at(AT_QP_TYPE),
        udp_port: u32_at(AT_UDP_PORT),
        addr: u64_at(AT_ADDR),
        length: u64_at(AT_LENGTH),
        rkey: u32_at(AT_RKEY),
        qkey: u32_at(AT_QKEY),
        max_rd_atomic: u32_at(AT_MAX_RD_ATOMIC),
        flags: u32_at(AT_FLAGS),
        ..zeroed()
    };
    check(&e, "wire").map_err(|_| reason::assign_to(Error::Os(libc::EPROTO)))?;
    Ok(e)
}

/// Describes the local side of a QP: its device's address, its number, a fresh PSN (random; after
/// gdrc_qp_reset ahead of the former ones) and, for UD, Q_Key; if `mr` is not NULL also the
/// region's first address (the one that the peer must use), length and rkey. `out->struct_size`
/// must be set before the call. Call it once per connection, and pass the same struct to
/// gdrc_qp_connect as `local`.
///
/// A GDRC_QPT_DCT of a NIC gets its number from gdrc_qp_connect, and `qpn` is 0 before: call this
/// once more then, and send peers that.
///
/// Errors: -EINVAL: stale handle, out is NULL or its struct_size 0. Threads: any. Cost: one system
/// call (randomness).
#[no_mangle]
pub unsafe extern "C" fn gdrc_endpoint_local(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    mr: *const gdrc_mr,
    out: *mut gdrc_endpoint,
) -> c_int {
    call(|| {
        let out = sized_out!(out);
        let dev = device(ctx)?;
        let (was, init) = dev.qp_query(qp.handle)?;
        let d = dev.facts()?;
        let random = random()?;
        let mut e = gdrc_endpoint {
            version: GDRC_ENDPOINT_VERSION,
            gid: d.gid,
            scope_id: d.scope_id,
            qpn: dev.qp_num(qp.handle)?,
            psn: start_psn(was.sq_psn, random[0]),
            mtu: d.active_mtu,
            qp_type: init.qp_type,
            udp_port: d.udp_port,
            max_rd_atomic: d.max_rd_atomic,
            flags: if d.own_port != 0 { GDRC_ENDPOINT_OWN_PORT } else { 0 },
            ..zeroed()
        };
        if init.qp_type == qp_type::UD {
            // With the high bit set the sender's device would use its own Q_Key.
            e.qkey = random[1] >> 1;
        }
        if !mr.is_null() {
            let mr: gdrc_mr = plain_in!(mr);
            let a = dev.mr_query(mr.handle)?;
            e.addr = a.iova;
            e.length = a.length;
            e.rkey = a.rkey;
        }
        out.write(&e);
        Ok(())
    })
}

fn random() -> Result<[u32; 2]> {
    let mut b = [0; 8];
    gdrcore_net::clock::random(&mut b)?;
    let n = u64::from_ne_bytes(b);
    Ok([n as u32, (n >> 32) as u32])
}

/// Writes an endpoint as GDRC_ENDPOINT_WIRE_BYTES bytes for any transport: magic "GDRC", version,
/// fields in big-endian.
///
/// Errors: -EINVAL: a field is out of range, a NULL pointer, struct_size is 0. Threads: any. Cost:
/// none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_endpoint_pack(
    endpoint: *const gdrc_endpoint,
    wire: *mut u8,
) -> c_int {
    call(|| {
        let e = sized_in!(endpoint);
        let out = out!(wire.cast::<[u8; WIRE]>());
        check(&e, "endpoint")?;
        out.write(pack(&e));
        Ok(())
    })
}

/// Parses the bytes that a peer's gdrc_endpoint_pack wrote; any bytes are safe. `out->struct_size`
/// must be set before the call.
///
/// Errors: -EPROTO: not an endpoint, or fields with impossible values; -EPROTONOSUPPORT: a version
/// that this library does not know; -EINVAL: a NULL pointer, struct_size is 0. Threads: any. Cost:
/// none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_endpoint_unpack(wire: *const u8, out: *mut gdrc_endpoint) -> c_int {
    call(|| {
        let out = sized_out!(out);
        let w: [u8; WIRE] = plain_in!(wire.cast());
        out.write(&unpack(&w)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> gdrc_endpoint {
        gdrc_endpoint {
            version: 1,
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 7],
            qpn: 0x123456,
            psn: 0xfedcba,
            mtu: mtu::MTU_2048,
            qp_type: qp_type::RC,
            udp_port: 4791,
            addr: 0x7fff_0000_1000,
            length: 1 << 20,
            rkey: 0xdead_beef,
            qkey: 0x1111_1111,
            max_rd_atomic: 16,
            flags: GDRC_ENDPOINT_OWN_PORT,
            ..zeroed()
        }
    }

    #[test]
    fn psns_of_the_next_life_are_ahead_of_those_of_many_before() {
        let mut psn = 0xff_fff0;
        let mut lives = Vec::new();
        for n in 0..1000u32 {
            let next = start_psn(psn, n.wrapping_mul(0x9e37_79b9));
            lives.push(psn);
            // Signed distance in 24 bits, as both ends judge PSNs.
            let ahead = |old: u32| (next.wrapping_sub(old) << 8) as i32 >> 8;
            assert!(ahead(psn) >= PSN_GAP as i32 && ahead(psn) < (PSN_GAP + PSN_SPREAD) as i32);
            assert!(
                lives.iter().rev().take(24).all(|&old| ahead(old) >= PSN_GAP as i32),
                "life {n}"
            );
            psn = next;
        }
        assert_eq!(start_psn(0, 0x1234_5678), 0x34_5678, "the first life begins anywhere");
    }

    #[test]
    fn another_version_is_named_as_documented() {
        let mut w = pack(&sample());
        w[7] = 2;
        let mut end = gdrc_endpoint { struct_size: size_of::<gdrc_endpoint>() as u32, ..zeroed() };
        // SAFETY: both are live, and of the sizes that the header says.
        let refused = unsafe { gdrc_endpoint_unpack(w.as_ptr(), &mut end) };
        assert_eq!(refused, -libc::EPROTONOSUPPORT);
        // SAFETY: a string of the library's own.
        let text =
            unsafe { core::ffi::CStr::from_ptr(crate::string_calls::gdrc_strerror(refused)) };
        let row = format!("| other version | {} |", text.to_str().unwrap());
        assert!(include_str!("../../docs/using/TROUBLES.md").contains(&row), "{row}");
    }

    #[test]
    fn endpoint_wire_form_is_as_documented() {
        let w = pack(&sample());
        assert_eq!(&w[..8], b"GDRC\0\0\0\x01");
        assert_eq!(w[24..28], [0, 0x12, 0x34, 0x56]);
        assert_eq!(w[44..48], [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(w[48..56], 0x7fff_0000_1000u64.to_be_bytes());
        assert_eq!(w[72..76], [0, 0, 0, 1]);
        assert!(w[76..].iter().all(|&b| b == 0));
    }

    #[test]
    fn endpoint_survives_the_wire() {
        let e = unpack(&pack(&sample())).unwrap();
        assert_eq!(pack(&e), pack(&sample()));
        assert_eq!((e.qpn, e.psn, e.rkey, e.length), (0x123456, 0xfedcba, 0xdead_beef, 1 << 20));
    }

    #[test]
    fn endpoint_from_garbage_is_refused() {
        let good = pack(&sample());
        let with = |at: usize, v: u8| {
            let mut w = good;
            w[at] = v;
            unpack(&w).err()
        };
        assert_eq!(with(0, b'X'), Some(Error::Os(libc::EPROTO)));
        assert_eq!(with(7, 2), Some(Error::Os(libc::EPROTONOSUPPORT)));
        assert_eq!(with(24, 1), Some(Error::Os(libc::EPROTO))); // QPN over 24 bits
        assert_eq!(with(28, 1), Some(Error::Os(libc::EPROTO))); // PSN over 24 bits
        assert_eq!(with(35, 9), Some(Error::Os(libc::EPROTO))); // MTU code
        assert_eq!(with(39, 0), Some(Error::Os(libc::EPROTO))); // QP type
        assert_eq!(with(41, 1), Some(Error::Os(libc::EPROTO))); // port over 16 bits
        assert_eq!(with(75, 2), Some(Error::Os(libc::EPROTO))); // an unknown flag
        assert_eq!(with(127, 1), Some(Error::Os(libc::EPROTO))); // reserved
        let mut w = good;
        w[48..64].fill(0xff); // address + length leaves 64 bits
        assert_eq!(unpack(&w).err(), Some(Error::Os(libc::EPROTO)));
    }
}
