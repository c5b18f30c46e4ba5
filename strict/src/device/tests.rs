use super::*;
use crate::process::{install, Settings};
use gdrcore_net::soft::SoftConfig;
use gdrcore_testkit::soft::Soft;

const RIGHTS: u32 = access::LOCAL_WRITE;

/// A device that is watched, in front of a soft one that stays.
fn watched() -> StrictDevice<dyn Device> {
    install(Settings::parse("report").expect("a mode")).expect("the state");
    let soft: &'static Soft =
        Box::leak(Box::new(Soft::open("loopback", &SoftConfig::default()).expect("a device")));
    StrictDevice::new(soft.dev(), soft.dev())
}

/// A region and a queue pair that has a receive request in it.
struct Receiver {
    device: StrictDevice<dyn Device>,
    pd: Handle,
    mr: Handle,
    attr: MrAttr,
    qp: Handle,
}

impl Receiver {
    fn new(memory: &[u8]) -> Receiver {
        let device = watched();
        let pd = device.pd_alloc().expect("a PD");
        let (mr, attr) = device.mr_reg(&reg(pd, memory, 0)).expect("a region");
        let (cq, _) = device.cq_create(16).expect("a CQ");
        let cap = QpCap { max_recv_wr: 4, max_recv_sge: 1, ..QpCap::default() };
        let init =
            QpInit { qp_type: qp_type::RC, pd, send_cq: cq, recv_cq: cq, cap, ..QpInit::default() };
        let (qp, ..) = device.qp_create(&init).expect("a queue pair");
        let to_init = QpAttr { qp_state: qp_state::INIT, port_num: 1, ..QpAttr::default() };
        let mask = qp_attr_mask::STATE
            | qp_attr_mask::PKEY_INDEX
            | qp_attr_mask::PORT
            | qp_attr_mask::ACCESS_FLAGS;
        device.qp_modify(qp, &to_init, mask).expect("INIT");
        Receiver { device, pd, mr, attr, qp }
    }

    fn receive(&self) {
        let sge = Sge { addr: self.attr.iova, length: 8, lkey: self.attr.lkey };
        let wr = RecvWr { wr_id: 1, next: core::ptr::null(), sg_list: &sge, num_sge: 1 };
        // SAFETY: a list of one request, which lives.
        unsafe { self.device.post_recv(self.qp, &wr, &mut core::ptr::null()) }.expect("posted");
    }

    /// The reports of this thread's calls so far, and the memory of the region.
    fn seen(&self) -> (usize, Option<String>) {
        let key = (self.device.key(), self.attr.lkey);
        watch(|state| (state.reports.count(), state.regions.0.get(&key).map(MrRange::words)))
            .expect("the state")
    }
}

fn reg(pd: Handle, memory: &[u8], provider: u32) -> MrReg {
    let (addr, length) = (memory.as_ptr().expose_provenance() as u64, memory.len() as u64);
    MrReg { pd, addr, length, iova: addr, access: RIGHTS, provider, cookie: 0 }
}

fn words(memory: &[u8]) -> Option<String> {
    Some(mr_words(memory.as_ptr().addr() as u64, memory.len() as u64))
}

#[test]
fn a_region_that_is_registered_anew_lies_elsewhere_and_is_not_in_use() {
    let (one, other) = (vec![0; 64], vec![0; 128]);
    let r = Receiver::new(&one);
    assert_eq!(r.seen(), (0, words(&one)));
    let attr = r.device.mr_rereg(r.mr, &reg(r.pd, &other, 0)).expect("registered anew");
    assert_eq!((attr.lkey, r.seen()), (r.attr.lkey, (0, words(&other))));
    let r = Receiver { attr, ..r };
    r.receive();
    r.device.mr_rereg(r.mr, &reg(r.pd, &one, 0)).expect("registered anew");
    assert_eq!(r.seen(), (1, words(&one)), "a request is on it");
    // Of memory of another kind no byte is looked at.
    r.device.note_region(&reg(r.pd, &one, 1), &(r.mr, r.attr));
    assert_eq!(r.seen(), (1, None));
}
