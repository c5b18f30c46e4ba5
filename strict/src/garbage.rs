//! Fields of a completion that failed: all but four are undefined, and are filled with numbers that
//! follow from the seed.

use gdrcore_core::random::Random;
use gdrcore_core::verbs::types::{wc_status, Wc};

/// Fills the undefined fields.
pub fn fill(wc: &mut Wc, random: &mut Random) {
    if wc.status == wc_status::SUCCESS {
        return;
    }
    let mut next = || random.draw() as u32;
    *wc = Wc {
        wr_id: wc.wr_id,
        status: wc.status,
        vendor_err: wc.vendor_err,
        qp_num: wc.qp_num,
        // Each bit of what it was is wrong, so that no program is right by chance.
        opcode: !wc.opcode & 0xff | next() << 8,
        byte_len: next(),
        imm_data: next(),
        src_qp: next() & 0x00ff_ffff,
        wc_flags: next(),
        pkey_index: next() as u16,
        slid: next() as u16,
        sl: next() as u8,
        dlid_path_bits: next() as u8,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_fields_stay_and_the_others_follow_from_the_seed() {
        let wc = Wc {
            wr_id: 7,
            status: wc_status::WR_FLUSH_ERR,
            opcode: 128,
            vendor_err: 3,
            qp_num: 0x11,
            ..Wc::default()
        };
        let filled = |wc: &Wc, seed: u64| {
            let mut wc = *wc;
            fill(&mut wc, &mut Random::new(seed, 0));
            wc
        };
        let (a, b) = (filled(&wc, 1), filled(&wc, 2));
        assert_eq!((a.wr_id, a.status, a.vendor_err, a.qp_num), (7, 5, 3, 0x11));
        assert_eq!(a.opcode & 128, 0);
        assert_ne!(a.byte_len, b.byte_len);
        assert_eq!(a, filled(&wc, 1));
        let good = Wc { status: wc_status::SUCCESS, ..wc };
        assert_eq!(filled(&good, 1), good);
    }
}
