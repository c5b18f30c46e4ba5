//! The layer that sees every call of the program: name, arguments, result. It is there only if the
//! environment requests what needs it (`GDRC_TRACE`, `GDRC_TRACE_COUNT`, `GDRC_STRICT`,
//! `GDRC_FAULTS` with a fault of a call).
//!
//! A row of [`gdrcore_calls::CALLS`] is a call, and each row has a wrapper here, which calls
//! [`call_watched`]. Where a program gets a function's address, the wrapper stands in place of the
//! function: in the table by which the exported names jump (`symbols`), in the tables of a context
//! (`ops_table`), in extended QPs and CQs, in device memory. librdmacm's calls are commands to the
//! kernel, which [`command`] sees. If the environment requests nothing, none of these places is
//! touched, and a call costs nothing more.
//!
//! [`call_watched`] is the place for what acts before a call, such as a fault that answers it
//! ([`call_faults`]), and for what looks at its result.

use crate::abi::{ibv_cq_ex, ibv_dm, ibv_qp_ex, verbs_context};
use crate::verb_result::{errno, set_errno};
use crate::{call_faults, strict, trace};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use gdrcore_calls::{for_each_call, Args, Row, CALLS};

/// A function of C, seen as one of six words. Each call of libibverbs has at most six arguments,
/// all of them integers or pointers.
type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

static ON: AtomicBool = AtomicBool::new(false);

/// The place of `query_port` in a context's table: another function than the exported
/// `ibv_query_port`, with a fourth argument (`size`). Each other row has one function.
const QUERY_PORT_OF_TABLE: usize = CALLS.len();
/// The wrappers: one of each row, and that.
const PLACES: usize = CALLS.len() + 1;

/// The functions behind the wrappers; 0: not wrapped.
static REAL: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

unsafe extern "C" fn query_port_of_table(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> usize {
    // SAFETY: the program's call.
    unsafe { pass(QUERY_PORT_OF_TABLE, Row::ibv_query_port, [a, b, c, d, e, f]) }
}

macro_rules! wrappers {
    ($($name:ident($($arg:ident: $kind:ident),*) -> $outcome:ident $(($of:ident))?;)*) => {
        /// The wrapper of each row, and of [`QUERY_PORT_OF_TABLE`].
        static WRAPPERS: [Function; PLACES] = [$({
            unsafe extern "C" fn $name(
                a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
            ) -> usize {
                // SAFETY: the program's call.
                unsafe { pass(Row::$name as usize, Row::$name, [a, b, c, d, e, f]) }
            }
            $name
        },)* query_port_of_table];
    };
}
for_each_call!(wrappers);

/// Whether the layer is there. It is from the start of the process on, or never.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Makes the call behind a wrapper.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn pass(place: usize, row: Row, args: Args) -> usize {
    // SAFETY: the caller's promise.
    call_watched(row as usize, &args, |args| unsafe { real(place, args) })
}

/// Calls the function behind a wrapper.
///
/// # Safety
/// As for [`pass`], and the program has been given the wrapper.
unsafe fn real(place: usize, args: &Args) -> usize {
    let real = REAL[place].load(Ordering::Relaxed);
    // SAFETY: `wrap` stored the address of a function with these arguments. By the calling
    // conventions of x86-64 and aarch64 it takes each in a register of its own, ignores registers
    // beyond its arguments and bits beyond their types, and returns a result of up to eight bytes
    // in the register that is read here.
    unsafe {
        let real = core::mem::transmute::<usize, Function>(real);
        real(args[0], args[1], args[2], args[3], args[4], args[5])
    }
}

/// Makes a call of the program, unless a fault answers it, and tells those who watch of it before
/// and after. errno is the call's. `call`: makes it with arguments that may be others than the
/// program's.
fn call_watched(row: usize, args: &Args, call: impl FnOnce(&Args) -> usize) -> usize {
    let before = errno();
    let mut line = trace::Line::new();
    let seen = trace::TracedCall::begin(row, args, &mut line);
    set_errno(before);
    // SAFETY: called for a QP that the thread completes, which has all functions of its kind.
    let abort = || _ = unsafe { real(Row::ibv_wr_abort as usize, args) };
    let answer = |args: &Args| call_faults::answer(row, args, abort).unwrap_or_else(|| call(args));
    let result = strict::call_checked(row, args, answer);
    let after = errno();
    if let Some(seen) = seen {
        seen.end(result, after);
    }
    set_errno(after);
    result
}

/// Makes a command of librdmacm to the kernel: descriptor, address and length. `call` returns 0 or
/// an errno.
pub fn command(args: [usize; 3], call: impl FnOnce() -> i32) -> i32 {
    if !is_on() {
        return call();
    }
    let [fd, at, len] = args;
    call_watched(trace::command_row(at), &[fd, at, len, 0, 0, 0], |_| call() as usize) as i32
}

/// Opens or closes librdmacm's file. `call` returns a number or a negative errno.
pub fn channel(row: Row, fd: i32, call: impl FnOnce() -> i32) -> i32 {
    if !is_on() {
        return call();
    }
    call_watched(row as usize, &[fd as usize, 0, 0, 0, 0, 0], |_| call() as usize) as i32
}

/// Starts the layer, if the environment requests it: once, when the library is loaded.
#[cfg(not(test))]
extern "C" fn at_load() {
    crate::weak::install();
    // No short circuit: each begins something.
    let wanted = trace::install() | call_faults::install() | strict::install();
    if wanted {
        for (name, slot) in crate::symbols::slots() {
            if let Some(row) = Row::number_of(name) {
                REAL[row].store(slot.load(Ordering::Relaxed), Ordering::Relaxed);
                slot.store(WRAPPERS[row] as usize, Ordering::Relaxed);
            }
        }
        ON.store(true, Ordering::Release);
    }
}

#[cfg(not(test))]
#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;

/// Puts the wrapper of a place in place of a function; null stays null.
///
/// # Panics
/// The wrapper already passes on to another function, which may have other arguments.
fn wrap<F: Copy>(field: &mut Option<F>, place: usize) {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    // SAFETY: a pointer to a function, or null, of the same size.
    let real = unsafe { core::mem::transmute_copy::<Option<F>, usize>(field) };
    let wrapper = WRAPPERS[place] as usize;
    if real != 0 && real != wrapper {
        let known = REAL[place].swap(real, Ordering::Relaxed);
        assert!(known == 0 || known == real, "{place}: two functions behind one wrapper");
        // SAFETY: as above; `pass` says why the wrapper may be called as an `F`.
        *field = unsafe { core::mem::transmute_copy::<usize, Option<F>>(&wrapper) };
    }
}

macro_rules! wrap {
    ($of:expr; $($field:ident => $row:ident),* $(,)?) => {
        $(wrap(&mut $of.$field, Row::$row as usize);)*
    };
}

/// The functions of a new context.
pub fn wrap_context(verbs: &mut verbs_context) {
    if !is_on() {
        return;
    }
    wrap! { verbs.context.ops;
        alloc_mw => ibv_alloc_mw, bind_mw => ibv_bind_mw, dealloc_mw => ibv_dealloc_mw,
        poll_cq => ibv_poll_cq, req_notify_cq => ibv_req_notify_cq,
        post_srq_recv => ibv_post_srq_recv, post_send => ibv_post_send,
        post_recv => ibv_post_recv,
    }
    wrap(&mut verbs.query_port, QUERY_PORT_OF_TABLE);
    wrap! { verbs;
        advise_mr => ibv_advise_mr,
        alloc_null_mr => ibv_alloc_null_mr, reg_dm_mr => ibv_reg_dm_mr, alloc_dm => ibv_alloc_dm,
        free_dm => ibv_free_dm, modify_qp_rate_limit => ibv_modify_qp_rate_limit,
        alloc_parent_domain => ibv_alloc_parent_domain, dealloc_td => ibv_dealloc_td,
        alloc_td => ibv_alloc_td, modify_cq => ibv_modify_cq,
        query_rt_values => ibv_query_rt_values_ex, create_cq_ex => ibv_create_cq_ex,
        query_device_ex => ibv_query_device_ex, open_qp => ibv_open_qp,
        create_qp_ex => ibv_create_qp_ex, get_srq_num => ibv_get_srq_num,
        create_srq_ex => ibv_create_srq_ex, open_xrcd => ibv_open_xrcd,
        close_xrcd => ibv_close_xrcd,
    }
}

/// The functions of a new extended QP.
pub fn wrap_qp(qp: &mut ibv_qp_ex) {
    if !is_on() {
        return;
    }
    wrap! { qp;
        wr_start => ibv_wr_start, wr_complete => ibv_wr_complete, wr_abort => ibv_wr_abort,
        wr_send => ibv_wr_send, wr_send_imm => ibv_wr_send_imm, wr_send_inv => ibv_wr_send_inv,
        wr_rdma_read => ibv_wr_rdma_read, wr_rdma_write => ibv_wr_rdma_write,
        wr_rdma_write_imm => ibv_wr_rdma_write_imm, wr_atomic_cmp_swp => ibv_wr_atomic_cmp_swp,
        wr_atomic_fetch_add => ibv_wr_atomic_fetch_add, wr_atomic_write => ibv_wr_atomic_write,
        wr_flush => ibv_wr_flush, wr_bind_mw => ibv_wr_bind_mw, wr_local_inv => ibv_wr_local_inv,
        wr_set_ud_addr => ibv_wr_set_ud_addr, wr_set_xrc_srqn => ibv_wr_set_xrc_srqn,
        wr_set_inline_data => ibv_wr_set_inline_data,
        wr_set_inline_data_list => ibv_wr_set_inline_data_list, wr_set_sge => ibv_wr_set_sge,
        wr_set_sge_list => ibv_wr_set_sge_list,
    }
}

/// The functions of a new extended CQ. Functions that read fields of a completion are not wrapped,
/// because the call that took the completion shows it.
pub fn wrap_cq(cq: &mut ibv_cq_ex) {
    if !is_on() {
        return;
    }
    wrap! { cq;
        start_poll => ibv_start_poll, next_poll => ibv_next_poll, end_poll => ibv_end_poll,
    }
}

/// The functions of new device memory.
pub fn wrap_dm(dm: &mut ibv_dm) {
    if !is_on() {
        return;
    }
    wrap! { dm; memcpy_to_dm => ibv_memcpy_to_dm, memcpy_from_dm => ibv_memcpy_from_dm }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_public_name_has_a_row() {
        let table = include_str!("../symbols/ibverbs.txt");
        let mut n = 0;
        for line in table.lines().filter(|l| !l.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[1].starts_with("IBVERBS_1.") {
                assert!(Row::number_of(words[0]).is_some(), "{}", words[0]);
                n += 1;
            }
        }
        assert!(n > 100, "{n}");
    }

    #[test]
    fn a_wrapper_passes_words_on_and_keeps_errno() {
        unsafe extern "C" fn sum(a: u8, b: i32, c: usize) -> i32 {
            set_errno(libc::EBUSY);
            i32::from(a) + b + c as i32
        }
        let mut field: Option<unsafe extern "C" fn(u8, i32, usize) -> i32> = Some(sum);
        wrap(&mut field, Row::ibv_rate_to_mult as usize);
        wrap(&mut field, Row::ibv_rate_to_mult as usize);
        let wrapper = WRAPPERS[Row::ibv_rate_to_mult as usize] as usize;
        assert_eq!(field.map(|f| f as usize), Some(wrapper), "wrapped once");
        set_errno(0);
        // SAFETY: the function above.
        assert_eq!(unsafe { field.unwrap()(200, -300, 7) }, -93);
        assert_eq!(errno(), libc::EBUSY);
        let mut null: Option<unsafe extern "C" fn()> = None;
        wrap(&mut null, Row::ibv_fork_init as usize);
        assert!(null.is_none());
    }
    #[test]
    #[should_panic(expected = "two functions behind one wrapper")]
    fn a_wrapper_has_one_function() {
        unsafe extern "C" fn one() -> usize {
            1
        }
        unsafe extern "C" fn two() -> usize {
            2
        }
        let all: [unsafe extern "C" fn() -> usize; 2] = [one, two];
        for f in all {
            wrap(&mut Some(f), Row::ibv_is_fork_initialized as usize);
        }
    }
}
