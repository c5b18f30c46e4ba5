//! The descriptor `cmd_fd` of a context, and the commands that programs write to it as they would
//! to the kernel's uverbs.
//!
//! libibverbs' own commands are function calls here and do not use the descriptor. Some programs
//! write commands themselves, for example FreeFlow's router QUERY_QP, and rely on the result of
//! write(2). An unprivileged process cannot make a descriptor whose write(2) runs its own code. So
//! `cmd_fd` is the read end of a pipe, which write(2) refuses with EBADF. Its inode is unique, as
//! `ibv_import_device` requires. If `libgdrcore_preload.so` is loaded, it passes the refused write
//! to this file ([`offer`]). A write that the kernel accepts costs nothing.
//!
//! QUERY_DEVICE and QUERY_QP are answered, with the kernel's checks of lengths in the kernel's
//! order. All others are refused: they would make objects that libibverbs cannot use.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::event_acks::EventKind;
use crate::hca::Hca;
use crate::open_context::Context;
use crate::open_devices::{put, STATE};
use crate::qp_verbs::{Qp, QpSnapshot};
use crate::query_verbs;
use crate::verb_result::{stat, Verb};
use core::ffi::{c_int, c_void, CStr};
use gdrcore_core::{copy_fields, copy_qp_cap, refuse, Error, Result};
use gdrcore_net::fault;
use gdrcore_ucma::memory::{place, read};
use std::sync::Once;

/// `IB_USER_VERBS_CMD_FLAG_EXTENDED`, `_COMMAND_MASK`, `_QUERY_DEVICE`, `_QUERY_QP`.
const EXTENDED: u32 = 1 << 31;
const NUMBER: u32 = 0xff;
const QUERY_DEVICE: u32 = 1;
const QUERY_QP: u32 = 25;
/// Longest request that is read; all known requests are shorter.
const REQUEST_MAX: usize = 64;

/// The kernel's error for a length that is too small.
const NO_SPACE: Error = Error::Os(libc::ENOSPC);

/// A file's identity, whatever its descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct File(libc::dev_t, libc::ino_t);

impl File {
    /// The file of a descriptor, if it can be that of a context.
    pub fn find(fd: c_int) -> Option<File> {
        let st = stat(fd).ok()?;
        (st.st_mode & libc::S_IFMT == libc::S_IFIFO).then_some(File(st.st_dev, st.st_ino))
    }
}

/// A descriptor for a new context.
///
/// # Errors
/// `Os(EMFILE)`, `Os(ENFILE)`.
pub fn descriptor() -> Result<c_int> {
    offer();
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(crate::verb_result::last_error());
    }
    // SAFETY: just opened. Nobody writes to it, so it stays empty.
    unsafe { libc::close(ends[1]) };
    Ok(ends[0])
}

/// The device, for one more context ([`put`] is the opposite), and the entry of the context whose
/// `cmd_fd` is this file. `None`: the file is of no context of this process.
pub fn device_of(file: File) -> Option<(&'static Hca, &'static Adapter)> {
    let mut state = STATE.lock();
    state.open.iter_mut().find_map(|open| {
        let adapter = adapter_of(open.hca, file)?;
        Some((open.hold(), adapter))
    })
}

fn adapter_of(hca: &Hca, file: File) -> Option<&'static Adapter> {
    // Skip a parent's device: at the fork, a thread that the child does not have may have held the
    // lock of its objects.
    hca.check().ok()?;
    let objects = hca.objects();
    // SAFETY: what is in the table, which is locked, lives.
    let mut contexts =
        objects.contexts.iter().filter_map(|c| unsafe { Context::of_anybody(c.ibv) }.ok());
    contexts.find(|c| is_open_on(c, file)).map(|c| c.adapter)
}

fn is_open_on(c: &Context, file: File) -> bool {
    File::find(c.verbs.context.cmd_fd) == Some(file)
}

/// The type of [`write()`] for the preloaded library.
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;

/// Registers [`write()`] with the preloaded library, once. The library then passes on the writes
/// that the kernel has refused.
fn offer() {
    static ONCE: Once = Once::new();
    const TAKE: &CStr = c"gdrc_commands_1";
    ONCE.call_once(|| {
        // SAFETY: a constant name.
        let take = unsafe { libc::dlsym(libc::RTLD_DEFAULT, TAKE.as_ptr()) };
        if !take.is_null() {
            // SAFETY: the preloaded library's function of this name has this type.
            let take =
                unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(Write)>(take) };
            // SAFETY: it keeps a pointer to a function, and the function's library loaded.
            unsafe { take(write) };
        }
    });
}

/// write(2) to a descriptor that cannot be written to. Returns `len`, or a negative errno.
unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    let done = File::find(fd).and_then(|file| {
        let (hca, adapter) = device_of(file)?;
        // The program's addresses may be invalid.
        let done = fault::install()
            .and_then(|()| command(&CommandTarget { hca, adapter, file }, buf as u64, len));
        put(hca);
        Some(done)
    });
    match done {
        Some(Ok(())) => isize::try_from(len).unwrap_or(isize::MAX),
        Some(Err(e)) => {
            Verb("write to cmd_fd").refused(e);
            -(e.errno() as isize)
        }
        None => -(libc::EBADF as isize),
    }
}

/// The context to which the program wrote a command.
struct CommandTarget<'a> {
    hca: &'a Hca,
    adapter: &'static Adapter,
    file: File,
}

/// A command: the sizes of its structs, and the function that answers it.
struct CommandSpec {
    /// Bytes of request and response.
    sizes: (usize, usize),
    answer: fn(&CommandTarget<'_>, &[u8]) -> Result<Response>,
}

enum Response {
    Device(ib_uverbs_query_device_resp),
    Qp(ib_uverbs_query_qp_resp),
}

impl Response {
    fn bytes(&self) -> &[u8] {
        match self {
            Response::Device(r) => r.bytes(),
            Response::Qp(r) => r.bytes(),
        }
    }
}

/// The specification of a command.
///
/// # Errors
/// [`Error::Invalid`]: undefined bits. [`Error::Unsupported`]: not answered here.
fn spec(command: u32) -> Result<CommandSpec> {
    if command & !(EXTENDED | NUMBER) != 0 {
        return Err(refuse!(Invalid, "command {command:#x}: bits that no command has"));
    }
    match command {
        QUERY_DEVICE => Ok(CommandSpec {
            sizes: (size_of::<ib_uverbs_query_device>(), size_of::<ib_uverbs_query_device_resp>()),
            answer: |target, _| Ok(Response::Device(device(target))),
        }),
        QUERY_QP => Ok(CommandSpec {
            sizes: (size_of::<ib_uverbs_query_qp>(), size_of::<ib_uverbs_query_qp_resp>()),
            answer: |target, request| {
                queue_pair(target, &ib_uverbs_query_qp::of(request)).map(Response::Qp)
            },
        }),
        _ => Err(refuse!(Unsupported, "command {command:#x}: not answered here")),
    }
}

/// Executes the command of `len` bytes at `at`.
///
/// # Errors
/// [`Error::Invalid`]: lengths that contradict each other, no such queue pair. `ENOSPC`: a request,
/// or room for a response, that is too small. [`Error::Fault`]: an address that cannot be read or
/// written. [`Error::Unsupported`]: another command, or bytes behind the request that are not zero.
fn command(target: &CommandTarget<'_>, at: u64, len: usize) -> Result<()> {
    const HEAD: usize = size_of::<ib_uverbs_cmd_hdr>();
    if len < HEAD {
        return Err(refuse!(Invalid, "a command of {len} bytes: shorter than its head"));
    }
    let mut head = [0; HEAD];
    read(at, &mut head)?;
    let head = ib_uverbs_cmd_hdr::of(&head);
    let spec = spec(head.command)?;
    let (request, response) = spec.sizes;
    let room = usize::from(head.out_words) * 4;
    if usize::from(head.in_words) * 4 != len {
        return Err(refuse!(Invalid, "in_words {}: the command has {len} bytes", head.in_words));
    }
    if len - HEAD < request || room < response {
        return Err(NO_SPACE);
    }
    let mut bytes = [0; REQUEST_MAX];
    let bytes = &mut bytes[..request];
    read(at.wrapping_add(HEAD as u64), bytes)?;
    expect_zeroes(at.wrapping_add((HEAD + request) as u64), len - HEAD - request)?;
    let answer = (spec.answer)(target, bytes)?;
    // Each request begins with the response's address.
    let to = ib_uverbs_query_device::of(bytes).response;
    place(to, answer.bytes())?;
    let zeroes = [0; 256];
    for done in (response..room).step_by(zeroes.len()) {
        let n = zeroes.len().min(room - done);
        place(to.wrapping_add(done as u64), &zeroes[..n])?;
    }
    Ok(())
}

/// Accepts the longer struct of a newer program if the additional bytes are 0.
fn expect_zeroes(at: u64, len: usize) -> Result<()> {
    let mut piece = [0; 256];
    for done in (0..len).step_by(piece.len()) {
        let n = piece.len().min(len - done);
        read(at.wrapping_add(done as u64), &mut piece[..n])?;
        if piece[..n].iter().any(|b| *b != 0) {
            return Err(refuse!(
                Unsupported,
                "a byte behind the request is not zero: of a newer program"
            ));
        }
    }
    Ok(())
}

fn device(target: &CommandTarget<'_>) -> ib_uverbs_query_device_resp {
    let limits = query_verbs::device_attr(target.hca, target.adapter).limits;
    ib_uverbs_query_device_resp { fw_ver: query_verbs::firmware(), limits }
}

/// The attributes that the device does not have, of the queue pair with this number.
fn snapshot(of: &CommandTarget<'_>, number: u32) -> Option<QpSnapshot> {
    let objects = of.hca.objects();
    let mut all = objects.by_handle.values().chain(objects.opened.values().flatten());
    all.find_map(|target| {
        // SAFETY: what is in the table, which is locked, lives, and so does the context of each.
        let (target, context) =
            unsafe { (&**target, Context::of_anybody((**target).context()).ok()?) };
        if !matches!(target.kind(), EventKind::Qp) || !is_open_on(context, of.file) {
            return None;
        }
        // SAFETY: as above; of a QP this field of the union is valid.
        let q = unsafe { Qp::from_ptr(target.element().qp) }.ok()?;
        (q.ex.qp_base.handle == number).then(|| q.snapshot())
    })
}

fn queue_pair(
    target: &CommandTarget<'_>,
    request: &ib_uverbs_query_qp,
) -> Result<ib_uverbs_query_qp_resp> {
    let known = snapshot(target, request.qp_handle);
    let known = known.ok_or_else(|| {
        refuse!(Invalid, "qp_handle {}: no QP of this context", request.qp_handle)
    })?;
    let a = known.query(target.hca.device)?;
    let byte = |x: u32| x as u8;
    let mut r = ib_uverbs_query_qp_resp {
        dest: destination(&a.ah_attr),
        alt_dest: destination(&a.alt_ah_attr),
        qp_state: byte(a.qp_state),
        cur_qp_state: byte(a.cur_qp_state),
        path_mtu: byte(a.path_mtu),
        path_mig_state: byte(a.path_mig_state),
        sq_sig_all: known.sq_sig_all.into(),
        ..ib_uverbs_query_qp_resp::default()
    };
    copy_qp_cap!(a.cap => r);
    copy_fields! { a => r;
        qkey rq_psn sq_psn dest_qp_num qp_access_flags pkey_index alt_pkey_index sq_draining
        max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry
        alt_port_num alt_timeout
    }
    Ok(r)
}

fn destination(a: &ibv_ah_attr) -> ib_uverbs_qp_dest {
    let mut to = ib_uverbs_qp_dest { dgid: a.grh.dgid.raw, ..ib_uverbs_qp_dest::default() };
    copy_fields!(a.grh => to; flow_label sgid_index hop_limit traffic_class);
    copy_fields!(a => to; dlid sl src_path_bits static_rate is_global port_num);
    to
}
