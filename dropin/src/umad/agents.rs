//! The agents of a port: subnet management (NodeInfo, PortInfo, …) and performance management
//! (port counters), by IBTA chapters 14 and 16.1. A RoCE device has neither a subnet nor a subnet
//! manager, so the former serves only tools on the port itself.

use super::mad::{attribute, class, method, status, Mad, DATA};
use crate::sysfs::{counters_of_port, port_state, PORT_COUNTERS};

/// Bit of ClassPortInfo:CapabilityMask: PortCountersExtended, with unicast and multicast.
const EXTENDED_WIDTH: u16 = 1 << 9;
/// PortSelect: all ports.
const ALL_PORTS: u8 = 0xff;
/// The default partition; the table has no other.
const PKEY: u16 = 0xffff;

/// The facts about a port that the agents report.
#[derive(Clone, Debug, Default)]
pub struct PortFacts {
    /// The device's place in the list: `gdrc<index>`.
    pub index: u32,
    pub guid: u64,
    pub gid: [u8; 16],
    pub lid: u16,
}

/// Answers a request to the port itself: turns the request into its response.
pub fn answer(port: &PortFacts, mad: &mut Mad) {
    let done = match (mad.class(), mad.method()) {
        (class::SMP | class::DIRECTED, method::GET) => subnet(port, mad),
        (class::PERFORMANCE, method::GET) => performance(port, mad),
        (_, method::GET | method::SET) => Err(status::NO_SUCH_ATTRIBUTE),
        _ => Err(status::NO_SUCH_METHOD),
    };
    mad.respond(done.err().unwrap_or(0));
}

/// Checks the port number in an attribute modifier. This port has the number 1; 0 means the port
/// that got the request.
fn check_port(number: u32) -> Result<(), u16> {
    if number <= 1 {
        Ok(())
    } else {
        Err(status::INVALID_FIELD)
    }
}

fn subnet(port: &PortFacts, mad: &mut Mad) -> Result<(), u16> {
    let modifier = mad.modifier();
    let mut data = [0u8; 64];
    let port_guid = &port.gid[8..];
    let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
    match mad.attribute() {
        attribute::NODE_DESCRIPTION => put(0, format!("gdrc{}", port.index).as_bytes()),
        attribute::NODE_INFO => {
            // Versions 1 and 1, a channel adapter of one port.
            put(0, &[1, 1, 1, 1]);
            put(4, &port.guid.to_be_bytes());
            put(12, &port.guid.to_be_bytes());
            put(20, port_guid);
            // Partitions; then device, revision, the number of the port, and vendor.
            put(28, &1u16.to_be_bytes());
            put(36, &[1]);
        }
        attribute::GUID_INFO if modifier == 0 => put(0, port_guid),
        attribute::GUID_INFO => {}
        attribute::PKEY_TABLE if modifier & 0xffff == 0 => put(0, &PKEY.to_be_bytes()),
        attribute::PKEY_TABLE => {}
        attribute::PORT_INFO => {
            check_port(modifier)?;
            put(8, &port.gid[..8]);
            put(16, &port.lid.to_be_bytes());
            // The capability mask, as in sysfs; the port's number.
            put(20, &0x0401_0000u32.to_be_bytes());
            put(28, &[1]);
            // One lane of up to 10 Gb/s (2.5, 5 and 10); active and up, or down and disabled; MTU
            // 4096, one virtual lane, one GUID.
            let (is_up, _) = port_state(port.index);
            let (state, physical) = if is_up { (4, 5) } else { (1, 3) };
            put(29, &[1, 1, 1, 7 << 4 | state, physical << 4 | 2, 0, 4 << 4 | 7, 5 << 4, 1 << 4]);
            put(41, &[5]);
            put(43, &[1 << 4]);
            put(50, &[1]);
        }
        _ => return Err(status::NO_SUCH_ATTRIBUTE),
    }
    mad.data_mut(data.len()).copy_from_slice(&data);
    Ok(())
}

fn performance(port: &PortFacts, mad: &mut Mad) -> Result<(), u16> {
    let mut data = [0u8; 72];
    let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
    let select = mad.bytes()[DATA + 1];
    let attribute = mad.attribute();
    match attribute {
        attribute::CLASS_PORT_INFO => {
            put(0, &[1, 1]);
            put(2, &EXTENDED_WIDTH.to_be_bytes());
        }
        attribute::PORT_COUNTERS | attribute::PORT_COUNTERS_EXTENDED => {
            // Tools send 0 if they name no port: the port that got the request.
            if select != ALL_PORTS {
                check_port(select.into())?;
            }
            put(1, &[select]);
            let values = counters_of_port(port.index);
            for (counter, value) in PORT_COUNTERS.iter().zip(values) {
                let (at, width) = match attribute {
                    attribute::PORT_COUNTERS => counter.at,
                    _ => counter.extended,
                };
                // A counter stays at its highest value.
                let most = u64::MAX.checked_shr(64 - 8 * width as u32).unwrap_or_default();
                put(at, &value.min(most).to_be_bytes()[8 - width..]);
            }
        }
        _ => return Err(status::NO_SUCH_ATTRIBUTE),
    }
    mad.data_mut(data.len()).copy_from_slice(&data);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> PortFacts {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 3, 4]);
        PortFacts { index: 7, guid: 0x0102_0304_0506_0708, gid, lid: 0x0304 }
    }

    fn ask(class: u8, method: u8, attribute: u16, modifier: u32) -> Mad {
        let mut mad = Mad::request(class, method, attribute, modifier);
        answer(&port(), &mut mad);
        assert_eq!(mad.method(), method | method::RESPONSE);
        mad
    }

    #[test]
    fn a_port_says_what_it_is() {
        let get = |attribute, modifier| ask(class::SMP, method::GET, attribute, modifier);
        let mad = get(attribute::NODE_INFO, 0);
        assert_eq!(mad.status(), 0);
        assert_eq!(mad.data()[..4], [1, 1, 1, 1]);
        assert_eq!(mad.data()[12..20], port().guid.to_be_bytes());
        assert_eq!(mad.data()[20..28], port().gid[8..]);
        let mad = get(attribute::PORT_INFO, 1);
        assert_eq!((mad.status(), &mad.data()[16..18]), (0, &[3, 4][..]));
        assert_eq!((mad.data()[32] & 15, mad.data()[33] >> 4), (4, 5));
        assert_eq!((mad.data()[32] >> 4, mad.data()[35]), (7, 0x47));
        assert_eq!(get(attribute::PORT_INFO, 2).status(), status::INVALID_FIELD);
        assert_eq!(&get(attribute::NODE_DESCRIPTION, 0).data()[..6], b"gdrc7\0");
        assert_eq!(get(attribute::PKEY_TABLE, 0).data()[..4], [0xff, 0xff, 0, 0]);
        assert_eq!(get(attribute::PKEY_TABLE, 1).data()[..4], [0; 4]);
        assert_eq!(get(0x12, 0).status(), status::NO_SUCH_ATTRIBUTE);
        let set = ask(class::SMP, method::SET, attribute::PORT_INFO, 1);
        assert_eq!(set.status(), status::NO_SUCH_ATTRIBUTE);
        assert_eq!(ask(class::SMP, 9, attribute::PORT_INFO, 1).status(), status::NO_SUCH_METHOD);
    }

    #[test]
    fn a_directed_response_says_that_it_is_on_its_way_back() {
        let mad = ask(class::DIRECTED, method::GET, attribute::NODE_INFO, 0);
        assert_eq!(mad.status(), 0x8000);
        assert_eq!(mad.data()[..4], [1, 1, 1, 1]);
    }

    #[test]
    fn counters_are_those_of_one_port() {
        for attribute in [attribute::PORT_COUNTERS, attribute::PORT_COUNTERS_EXTENDED] {
            for (select, status) in [(1, 0), (0, 0), (ALL_PORTS, 0), (2, status::INVALID_FIELD)] {
                let mut mad = Mad::request(class::PERFORMANCE, method::GET, attribute, 0);
                mad.data_mut(2)[1] = select;
                answer(&port(), &mut mad);
                assert_eq!((mad.status(), mad.data()[1]), (status, select));
            }
        }
        let info = ask(class::PERFORMANCE, method::GET, attribute::CLASS_PORT_INFO, 0);
        assert_eq!(info.data()[2..4], EXTENDED_WIDTH.to_be_bytes());
        let other = ask(class::PERFORMANCE, method::GET, 0x10, 0);
        assert_eq!(other.status(), status::NO_SUCH_ATTRIBUTE);
    }
}
