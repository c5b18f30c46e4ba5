//! Fuzzed structs, names and texts of any bytes.

use core::ffi::CStr;

use gdrcore::*;

use super::*;

/// The library reads and writes as many bytes as `struct_size` states; from 4097 on it refuses
/// without reading.
const STRUCT_MAX: usize = 4096;

/// A struct of any bytes in memory of the largest accepted `struct_size`, with a guard word behind
/// it.
struct Wild(Box<[u64; STRUCT_MAX / 8 + 1]>);

const FENCE: u64 = 0x5a5a_5a5a_5a5a_5a5a;

impl Wild {
    /// The first bytes come from the string, the rest is zero; mostly the size is that of a `T`.
    fn of<T>(input: &mut Bytes) -> Wild {
        let mut place = Wild(Box::new([0; STRUCT_MAX / 8 + 1]));
        place.0[STRUCT_MAX / 8] = FENCE;
        let n = input.below(size_of::<T>() / 8 + 2);
        for word in place.0.iter_mut().take(n) {
            *word = if input.one_in(4) {
                input.u64()
            } else {
                u64::from(input.word()) << 32 | u64::from(input.word())
            };
        }
        let size = match input.u8() {
            0..=199 => size_of::<T>() as u32,
            200..=229 => input.u16().into(),
            _ => input.word(),
        };
        place.0[0] = place.0[0] >> 32 << 32 | u64::from(size);
        place
    }

    /// The pointer for the call; rarely null or misaligned.
    fn ptr<T>(&mut self, input: &mut Bytes) -> *mut T {
        match input.u8() {
            254 => null_mut(),
            255 => self.0.as_mut_ptr().wrapping_byte_add(1).cast(),
            _ => self.0.as_mut_ptr().cast(),
        }
    }
}

impl Drop for Wild {
    fn drop(&mut self) {
        // If another check has failed already, its panic is the one to report.
        if !std::thread::panicking() {
            assert_eq!(self.0[STRUCT_MAX / 8], FENCE, "a call wrote behind the struct");
        }
    }
}

impl Walk<'_> {
    pub(super) fn wild(&mut self) {
        let x = self.ctx();
        match self.input.below(13) {
            0 => {
                let mut a = Wild::of::<gdrc_qp_attr>(&mut self.input);
                let qp = gdrc_qp { handle: self.input.pick(&self.made.qp) };
                let mask = self.input.u32();
                call!(self, gdrc_qp_modify(x, qp, a.ptr(&mut self.input), mask));
            }
            1 => {
                let mut init = Wild::of::<gdrc_qp_init>(&mut self.input);
                let mut o = gdrc_qp::default();
                call!(self, gdrc_qp_create(x, init.ptr(&mut self.input), &mut o, null_mut()));
            }
            2 => {
                let mut a = Wild::of::<gdrc_srq_attr>(&mut self.input);
                let mut o = gdrc_srq::default();
                let pd = gdrc_pd { handle: self.input.pick(&self.made.pd) };
                call!(self, gdrc_srq_create(x, pd, a.ptr(&mut self.input), &mut o));
            }
            3 => {
                let (mut l, mut r) = (
                    Wild::of::<gdrc_endpoint>(&mut self.input),
                    Wild::of::<gdrc_endpoint>(&mut self.input),
                );
                let mut o = Wild::of::<gdrc_qp_connect_opts>(&mut self.input);
                let qp = gdrc_qp { handle: self.input.pick(&self.made.qp) };
                let input = &mut self.input;
                let (l, r, o) = (l.ptr(input), r.ptr(input), o.ptr(input));
                call!(self, gdrc_qp_connect(x, qp, l, r, o));
            }
            4 => self.endpoint_of_a_stranger(),
            5 => {
                let mut cfg = Wild::of::<gdrc_config>(&mut self.input);
                // The struct's pointers are to C strings, or null.
                for at in [
                    core::mem::offset_of!(gdrc_config, pcap_path),
                    core::mem::offset_of!(gdrc_config, faults),
                    core::mem::offset_of!(gdrc_config, strict),
                ] {
                    cfg.0[at / 8] = 0;
                }
                let mut bytes = 0;
                let name = self.name();
                call!(
                    self,
                    gdrc_context_size(name.as_ptr().cast(), cfg.ptr(&mut self.input), &mut bytes)
                );
            }
            6 => self.places(x),
            7 => self.sender_of_a_datagram(x),
            8 => {
                let mut cause: Cause = zeroed();
                (cause.code, cause.wc_status) = (self.input.word(), self.input.word());
                (cause.counter, cause.psn) = (self.input.word(), self.input.word());
                (cause.arg0, cause.arg1) = (self.input.u64(), self.input.u64());
                self.text(|buf, len| ("gdrc_cause_str", cause_str(&cause, buf, len)));
            }
            9 => self.text(|buf, len| ("gdrc_error_detail", error_detail(buf, len))),
            10 => {
                let mut out = Wild::of::<gdrc_mr_attr>(&mut self.input);
                let mr = gdrc_mr { handle: self.input.pick(&self.made.mr) };
                call!(self, gdrc_mr_query(x, mr, out.ptr(&mut self.input)));
            }
            11 => self.names_of_numbers(),
            _ => self.memory_of_gpus(x),
        }
    }

    /// The address of a datagram's sender, from a completion and a GRH of any bytes.
    fn sender_of_a_datagram(&mut self, x: *mut gdrc_context) {
        let mut wc: Wc = zeroed();
        (wc.wc_flags, wc.src_qp, wc.byte_len) =
            (self.input.word(), self.input.word(), self.input.word());
        wc.status = u32::from(self.input.u8() & 1);
        let mut grh = [0u8; 40];
        let head = self.input.take(40);
        grh[..head.len()].copy_from_slice(head);
        if self.input.one_in(2) {
            // The completion of a datagram from this host.
            wc.wc_flags |= wc_flags::GRH;
            grh[20..32].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x3c, 0xaf]);
            grh[32..].copy_from_slice(&[127, 0, 0, 1, 127, 0, 0, 1]);
        }
        let pd = gdrc_pd { handle: self.input.pick(&self.made.pd) };
        let mut o = gdrc_ah::default();
        call!(self, gdrc_ah_from_wc(x, pd, &wc, grh.as_ptr().cast(), &mut o));
        self.made.ah.push(o.handle);
    }

    /// Regions of GPU memory, and handles of such memory from elsewhere.
    fn memory_of_gpus(&mut self, x: *mut gdrc_context) {
        // Never host memory: any address would be in this process's own memory.
        let mut m = Wild::of::<gdrc_memory>(&mut self.input);
        m.0[0] |= u64::from(memory_kind::CUDA) << 32;
        let (mut o, mut a) = (gdrc_mr::default(), sized::<gdrc_mr_attr>());
        let pd = gdrc_pd { handle: self.input.pick(&self.made.pd) };
        let access = self.input.word();
        call!(self, gdrc_mr_reg_memory(x, pd, m.ptr(&mut self.input), access, &mut o, &mut a));
        let mut h = Wild::of::<gdrc_cuda_handle>(&mut self.input);
        call!(self, gdrc_cuda_import(h.ptr(&mut self.input), -1, &mut 0));
        let _ = gdrc_cuda_free(self.input.u64());
    }

    /// Texts for numbers, with any number.
    fn names_of_numbers(&mut self) {
        let n = self.input.word();
        for s in [
            gdrc_strerror(n.cast_signed()),
            gdrc_wc_status_str(n),
            gdrc_wc_opcode_str(n),
            gdrc_qp_state_str(n),
            gdrc_event_str(n),
        ] {
            // SAFETY: the header's contract: a static C string, never null.
            assert!(!unsafe { CStr::from_ptr(s) }.is_empty());
        }
        assert_eq!(gdrc_counter_name(n).is_null(), n >= gdrc_counter_count());
    }

    /// A device's name: a known one, a prefix of one, or any bytes. Ends with NUL.
    fn name(&mut self) -> Vec<u8> {
        const KNOWN: [&[u8]; 4] =
            [b"loopback", b"soft:127.0.0.1", b"soft:[fe80::1%lo]:4791", b"verbs:mlx5_0"];
        let mut name = KNOWN[self.input.below(4)].to_vec();
        if self.input.one_in(2) {
            let n = self.input.below(300);
            name.truncate(n);
            name.extend(self.input.take(n.saturating_sub(name.len())));
        }
        name.push(0);
        name
    }

    /// An endpoint as received from a peer: 128 bytes, some of them wrong.
    fn endpoint_of_a_stranger(&mut self) {
        let mut wire = [0u8; GDRC_ENDPOINT_WIRE_BYTES as usize];
        let Some(own) = self.made.ends.last().copied() else { return };
        assert_eq!(call!(self, gdrc_endpoint_pack(&own, wire.as_mut_ptr())), 0);
        for _ in 0..self.input.below(4) {
            wire[self.input.below(wire.len())] = self.input.u8();
        }
        let mut peer: gdrc_endpoint = sized();
        if call!(self, gdrc_endpoint_unpack(wire.as_ptr(), &mut peer)) == 0 {
            let qp = gdrc_qp { handle: self.made.qp.last().copied().unwrap_or(0) };
            call!(self, gdrc_qp_connect(self.ctx, qp, &own, &peer, null()));
        }
        let mut wild = Wild::of::<gdrc_endpoint>(&mut self.input);
        call!(self, gdrc_endpoint_pack(wild.ptr(&mut self.input), wire.as_mut_ptr()));
    }

    /// Results in buffers of every kind.
    fn places(&mut self, x: *mut gdrc_context) {
        let mut out = Wild::of::<gdrc_device_attr>(&mut self.input);
        match self.input.below(5) {
            0 => _ = call!(self, gdrc_device_query(x, out.ptr(&mut self.input))),
            1 => _ = call!(self, gdrc_config_default(out.ptr(&mut self.input))),
            2 => {
                let qp = gdrc_qp { handle: self.input.pick(&self.made.qp) };
                let mut init = Wild::of::<gdrc_qp_init>(&mut self.input);
                let (attr, init) = (out.ptr(&mut self.input), init.ptr(&mut self.input));
                call!(self, gdrc_qp_query(x, qp, attr, init));
            }
            3 => {
                let srq = gdrc_srq { handle: self.input.pick(&self.made.srq) };
                call!(self, gdrc_srq_query(x, srq, out.ptr(&mut self.input)));
            }
            _ => {
                let qp = gdrc_qp { handle: self.input.pick(&self.made.qp) };
                call!(self, gdrc_endpoint_local(x, qp, null(), out.ptr(&mut self.input)));
            }
        }
    }

    /// A text written to a buffer that may be too small: no byte beyond it may change.
    fn text(&mut self, write: impl Fn(*mut core::ffi::c_char, usize) -> (&'static str, i32)) {
        let mut buf = [0x5au8; 300];
        let len = self.input.below(buf.len());
        let (name, rc) = if self.input.one_in(8) {
            write(null_mut(), len)
        } else {
            write(buf.as_mut_ptr().cast(), len)
        };
        self.reached.note(name, rc);
        assert!(buf[len..].iter().all(|&b| b == 0x5a), "{name} wrote behind {len} bytes");
    }
}

fn cause_str(cause: &Cause, buf: *mut core::ffi::c_char, len: usize) -> i32 {
    // SAFETY: a live struct; the buffer is null or has `len` bytes.
    unsafe { gdrc_cause_str(cause, buf, len) }
}

fn error_detail(buf: *mut core::ffi::c_char, len: usize) -> i32 {
    // SAFETY: the buffer is null or has `len` bytes.
    unsafe { gdrc_error_detail(buf, len) }
}
