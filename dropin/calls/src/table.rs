//! One row for each call.

/// What an argument or a result is, which says how to print it.
///
/// Kinds that begin with `Out` are pointers to what the call writes: they are read after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // of members that are named after the object or struct
pub enum Arg {
    /// A signed number of 32 bits.
    Int,
    /// Unsigned numbers.
    U8,
    U16,
    U32,
    Size,
    /// Numbers in hexadecimal.
    Hex32,
    Hex64,
    /// A pointer, printed as it is.
    Address,
    /// A string of C.
    Text,
    Device,
    Context,
    Pd,
    Mr,
    Mw,
    Ah,
    Cq,
    Channel,
    Srq,
    Xrcd,
    Qp,
    Dm,
    /// Flags and enumerations: names of the header.
    Access,
    QpMask,
    QpState,
    /// Lists of requests.
    Sends,
    Recvs,
    Sges,
    /// Structs that the call reads.
    QpInit,
    QpInitEx,
    QpAttr,
    AhAttr,
    SrqInit,
    SrqInitEx,
    SrqAttr,
    CqInitEx,
    BindInfo,
    Bind,
    Gid,
    /// Those that it writes.
    OutInt,
    OutU16,
    OutU32,
    OutU64,
    OutCq,
    OutGid,
    OutEvent,
    OutPort,
    OutDeviceAttr,
    OutQpAttr,
    OutSrqAttr,
    OutAhAttr,
    /// Completions, as many as the result says.
    OutCompletions,
    /// A command of librdmacm to the kernel; it stands for all arguments.
    Command,
}

/// What a result means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 0; otherwise a positive errno.
    Status,
    /// A number from 0 on; otherwise a negative errno.
    Count,
    /// A number from 0 on, such as a descriptor; otherwise −1 with errno.
    Number,
    /// An object; otherwise NULL with errno.
    New(Arg),
    /// A completion was taken; ENOENT: there is none; otherwise an errno.
    Polled,
    /// Never an error.
    Plain(Arg),
    /// Nothing.
    Void,
}

impl Outcome {
    /// The errno of a result, if it is an error. `errno`: the thread's own after the call.
    pub fn error(self, result: usize, errno: i32) -> Option<i32> {
        let number = result as i32;
        match self {
            Outcome::Status | Outcome::Polled if number > 0 => Some(number),
            Outcome::Count if number < 0 => Some(-number),
            Outcome::Number if number < 0 => Some(errno),
            Outcome::New(_) if result == 0 => Some(errno),
            _ => None,
        }
    }
}

/// The arguments of a call as words. Bits beyond an argument's type are undefined.
pub type Args = [usize; 6];

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name in C.
    pub name: &'static str,
    /// Its arguments, by the names of the man page or the header.
    pub args: &'static [(&'static str, Arg)],
    /// Its result.
    pub outcome: Outcome,
}

/// Passes all rows to the macro `$then`: `name(argument: Kind, …) -> Outcome;`. The calls of
/// librdmacm are its commands to the kernel, which the drop-in gets in the kernel's place.
#[macro_export]
macro_rules! for_each_call {
    ($then:ident) => { $then! {
        ibv_get_device_list(num_devices: OutInt) -> New(Address);
        ibv_free_device_list(list: Address) -> Void;
        ibv_get_device_name(device: Device) -> Plain(Text);
        ibv_get_device_index(device: Device) -> Plain(Int);
        ibv_get_device_guid(device: Device) -> Plain(Hex64);
        ibv_open_device(device: Device) -> New(Context);
        ibv_import_device(cmd_fd: Int) -> New(Context);
        ibv_close_device(context: Context) -> Status;
        ibv_get_async_event(context: Context, event: OutEvent) -> Number;
        ibv_ack_async_event(event: OutEvent) -> Void;
        ibv_query_device(context: Context, device_attr: OutDeviceAttr) -> Status;
        ibv_query_device_ex(context: Context, input: Address, attr: OutDeviceAttr,
            attr_size: Size) -> Status;
        ibv_query_port(context: Context, port_num: U8, port_attr: OutPort) -> Status;
        ibv_query_port_speed(context: Context, port_num: U32, port_speed: OutU64) -> Status;
        ibv_query_gid(context: Context, port_num: U8, index: Int, gid: OutGid) -> Number;
        _ibv_query_gid_ex(context: Context, port_num: U32, gid_index: U32, entry: OutGid,
            flags: Hex32, entry_size: Size) -> Status;
        _ibv_query_gid_table(context: Context, entries: Address, max_entries: Size, flags: Hex32,
            entry_size: Size) -> Count;
        ibv_query_pkey(context: Context, port_num: U8, index: Int, pkey: OutU16) -> Number;
        ibv_get_pkey_index(context: Context, port_num: U8, pkey: U16) -> Number;
        ibv_query_rt_values_ex(context: Context, values: Address) -> Status;
        ibv_alloc_pd(context: Context) -> New(Pd);
        ibv_alloc_parent_domain(context: Context, attr: Address) -> New(Pd);
        ibv_dealloc_pd(pd: Pd) -> Status;
        ibv_import_pd(context: Context, pd_handle: U32) -> New(Pd);
        ibv_unimport_pd(pd: Pd) -> Void;
        ibv_alloc_td(context: Context, attr: Address) -> New(Address);
        ibv_dealloc_td(td: Address) -> Status;
        ibv_open_xrcd(context: Context, attr: Address) -> New(Address);
        ibv_close_xrcd(xrcd: Address) -> Status;
        ibv_reg_mr(pd: Pd, addr: Address, length: Size, access: Access) -> New(Mr);
        ibv_reg_mr_iova(pd: Pd, addr: Address, length: Size, iova: Hex64,
            access: Access) -> New(Mr);
        ibv_reg_mr_iova2(pd: Pd, addr: Address, length: Size, iova: Hex64,
            access: Access) -> New(Mr);
        ibv_reg_dmabuf_mr(pd: Pd, offset: Hex64, length: Size, iova: Hex64, fd: Int,
            access: Access) -> New(Mr);
        ibv_reg_dm_mr(pd: Pd, dm: Dm, dm_offset: Hex64, length: Size, access: Access) -> New(Mr);
        ibv_reg_mr_ex(pd: Pd, attr: Address) -> New(Mr);
        ibv_reg_buf_mr(pd: Pd, buf: Address, addr: Address, length: Size,
            access: Access) -> New(Mr);
        ibv_alloc_null_mr(pd: Pd) -> New(Mr);
        ibv_rereg_mr(mr: Mr, flags: Hex32, pd: Pd, addr: Address, length: Size,
            access: Access) -> Number;
        ibv_dereg_mr(mr: Mr) -> Status;
        ibv_import_mr(pd: Pd, mr_handle: U32) -> New(Mr);
        ibv_unimport_mr(mr: Mr) -> Void;
        ibv_advise_mr(pd: Pd, advice: Int, flags: Hex32, sg_list: Sges, num_sge: U32) -> Status;
        ibv_alloc_buf(pd: Pd, size: Size, buf: Address) -> New(Address);
        ibv_free_buf(buf: Address) -> Void;
        ibv_export_buf_dmabuf_fd(buf: Address) -> Number;
        ibv_alloc_dmah(context: Context, attr: Address) -> New(Address);
        ibv_dealloc_dmah(dmah: Address) -> Status;
        ibv_alloc_dm(context: Context, attr: Address) -> New(Dm);
        ibv_free_dm(dm: Dm) -> Status;
        ibv_import_dm(context: Context, dm_handle: U32) -> New(Dm);
        ibv_unimport_dm(dm: Dm) -> Void;
        ibv_dm_export_dmabuf_fd(dm: Dm) -> Number;
        ibv_memcpy_to_dm(dm: Dm, dm_offset: Hex64, host_addr: Address, length: Size) -> Status;
        ibv_memcpy_from_dm(host_addr: Address, dm: Dm, dm_offset: Hex64, length: Size) -> Status;
        ibv_alloc_mw(pd: Pd, mw_type: Int) -> New(Mw);
        ibv_bind_mw(qp: Qp, mw: Mw, mw_bind: Bind) -> Status;
        ibv_dealloc_mw(mw: Mw) -> Status;
        ibv_create_comp_channel(context: Context) -> New(Channel);
        ibv_destroy_comp_channel(channel: Channel) -> Status;
        ibv_create_cq(context: Context, cqe: Int, cq_context: Address, channel: Channel,
            comp_vector: Int) -> New(Cq);
        ibv_create_cq_ex(context: Context, cq_attr: CqInitEx) -> New(Cq);
        ibv_resize_cq(cq: Cq, cqe: Int) -> Status;
        ibv_modify_cq(cq: Cq, attr: Address) -> Status;
        ibv_destroy_cq(cq: Cq) -> Status;
        ibv_req_notify_cq(cq: Cq, solicited_only: Int) -> Status;
        ibv_get_cq_event(channel: Channel, cq: OutCq, cq_context: Address) -> Number;
        ibv_ack_cq_events(cq: Cq, nevents: U32) -> Void;
        ibv_poll_cq(cq: Cq, num_entries: Int, wc: OutCompletions) -> Count;
        ibv_start_poll(cq: Cq, attr: Address) -> Polled;
        ibv_next_poll(cq: Cq) -> Polled;
        ibv_end_poll(cq: Cq) -> Void;
        ibv_create_srq(pd: Pd, srq_init_attr: SrqInit) -> New(Srq);
        ibv_create_srq_ex(context: Context, srq_init_attr_ex: SrqInitEx) -> New(Srq);
        ibv_modify_srq(srq: Srq, srq_attr: SrqAttr, srq_attr_mask: Hex32) -> Status;
        ibv_query_srq(srq: Srq, srq_attr: OutSrqAttr) -> Status;
        ibv_get_srq_num(srq: Srq, srq_num: OutU32) -> Status;
        ibv_destroy_srq(srq: Srq) -> Status;
        ibv_create_qp(pd: Pd, qp_init_attr: QpInit) -> New(Qp);
        ibv_create_qp_ex(context: Context, qp_init_attr_ex: QpInitEx) -> New(Qp);
        ibv_open_qp(context: Context, qp_open_attr: Address) -> New(Qp);
        ibv_modify_qp(qp: Qp, attr: QpAttr, attr_mask: QpMask) -> Status;
        ibv_modify_qp_rate_limit(qp: Qp, attr: Address) -> Status;
        ibv_query_qp(qp: Qp, attr: OutQpAttr, attr_mask: QpMask, init_attr: Address) -> Status;
        ibv_query_qp_data_in_order(qp: Qp, op: Int, flags: Hex32) -> Plain(Int);
        ibv_query_ece(qp: Qp, ece: Address) -> Status;
        ibv_set_ece(qp: Qp, ece: Address) -> Status;
        ibv_destroy_qp(qp: Qp) -> Status;
        ibv_qp_to_qp_ex(qp: Qp) -> New(Qp);
        ibv_attach_mcast(qp: Qp, gid: Gid, lid: U16) -> Status;
        ibv_detach_mcast(qp: Qp, gid: Gid, lid: U16) -> Status;
        ibv_create_ah(pd: Pd, attr: AhAttr) -> New(Ah);
        ibv_create_ah_from_wc(pd: Pd, wc: Address, grh: Address, port_num: U8) -> New(Ah);
        ibv_init_ah_from_wc(context: Context, port_num: U8, wc: Address, grh: Address,
            ah_attr: OutAhAttr) -> Number;
        ibv_resolve_eth_l2_from_gid(context: Context, attr: AhAttr, eth_mac: Address,
            vid: OutU16) -> Number;
        ibv_destroy_ah(ah: Ah) -> Status;
        ibv_post_send(qp: Qp, wr: Sends, bad_wr: Address) -> Status;
        ibv_post_recv(qp: Qp, wr: Recvs, bad_wr: Address) -> Status;
        ibv_post_srq_recv(srq: Srq, wr: Recvs, bad_wr: Address) -> Status;
        ibv_wr_start(qp: Qp) -> Void;
        ibv_wr_complete(qp: Qp) -> Status;
        ibv_wr_abort(qp: Qp) -> Void;
        ibv_wr_send(qp: Qp) -> Void;
        ibv_wr_send_imm(qp: Qp, imm_data: Hex32) -> Void;
        ibv_wr_send_inv(qp: Qp, invalidate_rkey: Hex32) -> Void;
        ibv_wr_rdma_read(qp: Qp, rkey: Hex32, remote_addr: Hex64) -> Void;
        ibv_wr_rdma_write(qp: Qp, rkey: Hex32, remote_addr: Hex64) -> Void;
        ibv_wr_rdma_write_imm(qp: Qp, rkey: Hex32, remote_addr: Hex64, imm_data: Hex32) -> Void;
        ibv_wr_atomic_cmp_swp(qp: Qp, rkey: Hex32, remote_addr: Hex64, compare: Hex64,
            swap: Hex64) -> Void;
        ibv_wr_atomic_fetch_add(qp: Qp, rkey: Hex32, remote_addr: Hex64, add: Hex64) -> Void;
        ibv_wr_atomic_write(qp: Qp, rkey: Hex32, remote_addr: Hex64, atomic_wr: Address) -> Void;
        ibv_wr_flush(qp: Qp, rkey: Hex32, remote_addr: Hex64, len: Size,
            placement: U8, level: U8) -> Void;
        ibv_wr_bind_mw(qp: Qp, mw: Mw, rkey: Hex32, bind_info: BindInfo) -> Void;
        ibv_wr_local_inv(qp: Qp, invalidate_rkey: Hex32) -> Void;
        ibv_wr_set_ud_addr(qp: Qp, ah: Ah, remote_qpn: Hex32, remote_qkey: Hex32) -> Void;
        ibv_wr_set_xrc_srqn(qp: Qp, remote_srqn: U32) -> Void;
        ibv_wr_set_inline_data(qp: Qp, addr: Address, length: Size) -> Void;
        ibv_wr_set_inline_data_list(qp: Qp, num_buf: Size, buf_list: Address) -> Void;
        ibv_wr_set_sge(qp: Qp, lkey: Hex32, addr: Hex64, length: U32) -> Void;
        ibv_wr_set_sge_list(qp: Qp, num_sge: Size, sg_list: Address) -> Void;
        ibv_fork_init() -> Status;
        ibv_is_fork_initialized() -> Plain(Int);
        ibv_dontfork_range(base: Address, size: Size) -> Status;
        ibv_dofork_range(base: Address, size: Size) -> Status;
        ibv_wc_status_str(status: Int) -> Plain(Text);
        ibv_event_type_str(event: Int) -> Plain(Text);
        ibv_node_type_str(node_type: Int) -> Plain(Text);
        ibv_port_state_str(port_state: Int) -> Plain(Text);
        ibv_rate_to_mult(rate: Int) -> Plain(Int);
        ibv_rate_to_mbps(rate: Int) -> Plain(Int);
        mult_to_ibv_rate(mult: Int) -> Plain(Int);
        mbps_to_ibv_rate(mbps: Int) -> Plain(Int);
        ibv_copy_ah_attr_from_kern(dst: Address, src: Address) -> Void;
        ibv_copy_qp_attr_from_kern(dst: Address, src: Address) -> Void;
        ibv_copy_path_rec_from_kern(dst: Address, src: Address) -> Void;
        ibv_copy_path_rec_to_kern(dst: Address, src: Address) -> Void;
        ibv_get_sysfs_path() -> Plain(Text);
        ibv_read_sysfs_file(dir: Text, file: Text, buf: Address, size: Size) -> Number;
        ibv_register_driver(name: Text, init_func: Address) -> Void;
        _ibv_query_comp_cntr_caps(context: Context, caps: Address, size: Size) -> Status;
        ibv_create_comp_cntr(context: Context, attr: Address) -> New(Address);
        ibv_destroy_comp_cntr(cntr: Address) -> Status;
        ibv_inc_comp_cntr(cntr: Address, amount: Hex64) -> Status;
        ibv_inc_err_comp_cntr(cntr: Address, amount: Hex64) -> Status;
        ibv_qp_attach_comp_cntr(qp: Qp, cntr: Address, attr: Address) -> Status;
        ibv_read_comp_cntr(cntr: Address, value: OutU64) -> Status;
        ibv_read_err_comp_cntr(cntr: Address, value: OutU64) -> Status;
        ibv_set_comp_cntr(cntr: Address, value: Hex64) -> Status;
        ibv_set_err_comp_cntr(cntr: Address, value: Hex64) -> Status;
        rdma_create_event_channel() -> Count;
        rdma_destroy_event_channel(fd: Int) -> Void;
        rdma_create_id(fd: Int, command: Command) -> Status;
        rdma_destroy_id(fd: Int, command: Command) -> Status;
        rdma_bind_addr(fd: Int, command: Command) -> Status;
        rdma_resolve_addr(fd: Int, command: Command) -> Status;
        rdma_resolve_route(fd: Int, command: Command) -> Status;
        rdma_connect(fd: Int, command: Command) -> Status;
        rdma_listen(fd: Int, command: Command) -> Status;
        rdma_accept(fd: Int, command: Command) -> Status;
        rdma_reject(fd: Int, command: Command) -> Status;
        rdma_disconnect(fd: Int, command: Command) -> Status;
        rdma_init_qp_attr(fd: Int, command: Command) -> Status;
        rdma_get_cm_event(fd: Int, command: Command) -> Status;
        rdma_set_option(fd: Int, command: Command) -> Status;
        rdma_notify(fd: Int, command: Command) -> Status;
        rdma_join_multicast(fd: Int, command: Command) -> Status;
        rdma_leave_multicast(fd: Int, command: Command) -> Status;
        rdma_migrate_id(fd: Int, command: Command) -> Status;
        rdma_write_cm_event(fd: Int, command: Command) -> Status;
        rdma_query(fd: Int, command: Command) -> Status;
        rdma_command(fd: Int, command: Command) -> Status;
    } };
}

macro_rules! define {
    ($($name:ident($($arg:ident: $kind:ident),*) -> $outcome:ident $(($of:ident))?;)*) => {
        /// The number of a call in [`CALLS`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, non_camel_case_types)] // members have the calls' names
        pub enum Row { $($name),* }

        /// All calls, in the order of [`Row`].
        pub const CALLS: &[Call] = &[$(Call {
            name: stringify!($name),
            args: &[$((stringify!($arg), Arg::$kind)),*],
            outcome: Outcome::$outcome $((Arg::$of))?,
        }),*];
    };
}
for_each_call!(define);

impl Row {
    /// The call.
    pub fn call(self) -> &'static Call {
        &CALLS[self as usize]
    }

    /// The number of a call by its name in C.
    pub fn number_of(name: &str) -> Option<usize> {
        CALLS.iter().position(|c| c.name == name)
    }
}

/// Whether a call has a name, by which a rule names it: that of its row, or of the macro of the
/// header that makes it. `ibv_reg_mr` and `ibv_reg_mr_iova` become `ibv_reg_mr_iova2` where the
/// compiler does not know the access flags, `ibv_query_gid_ex` the name with a `_` before it.
pub fn is_named(row: usize, args: &Args, name: &str) -> bool {
    let own = CALLS[row].name;
    let is_macro = row == Row::ibv_reg_mr_iova2 as usize && {
        let [_, addr, _, iova, ..] = args;
        name == if iova == addr { "ibv_reg_mr" } else { "ibv_reg_mr_iova" }
    };
    is_macro || own.strip_prefix('_').unwrap_or(own) == name
}

/// Checks that some call of a name can fail.
///
/// # Errors
/// Why not, in words.
pub fn may_fail(name: &str) -> Result<(), &'static str> {
    let found = CALLS.iter().find(|call| call.name.strip_prefix('_').unwrap_or(call.name) == name);
    match found.map(|call| call.outcome) {
        None => Err("no call of libibverbs or librdmacm that the trace shows has that name"),
        Some(Outcome::Plain(_) | Outcome::Void) => Err("that call cannot fail"),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_row_and_no_more_arguments_than_registers() {
        for (i, call) in CALLS.iter().enumerate() {
            assert_eq!(Row::number_of(call.name), Some(i), "{}", call.name);
            assert!(call.args.len() <= 6, "{}: {:?}", call.name, call.args);
        }
        assert_eq!(Row::ibv_post_send.call().name, "ibv_post_send");
        assert_eq!(Row::number_of("ibv_post"), None);
    }

    #[test]
    fn names_of_rules_are_those_of_the_source() {
        let is = |row: Row, iova: usize, name| is_named(row as usize, &[1, 2, 3, iova, 0, 0], name);
        assert!(is(Row::ibv_reg_mr, 0, "ibv_reg_mr"));
        assert!(is(Row::ibv_reg_mr_iova2, 2, "ibv_reg_mr"));
        assert!(!is(Row::ibv_reg_mr_iova2, 2, "ibv_reg_mr_iova"));
        assert!(is(Row::ibv_reg_mr_iova2, 9, "ibv_reg_mr_iova"));
        assert!(is(Row::ibv_reg_mr_iova2, 9, "ibv_reg_mr_iova2"));
        assert!(is(Row::_ibv_query_gid_ex, 0, "ibv_query_gid_ex"));
        assert!(!is(Row::ibv_post_send, 0, "ibv_post"));
        for name in ["ibv_query_gid_ex", "ibv_poll_cq", "rdma_connect", "ibv_wr_complete"] {
            assert_eq!(may_fail(name), Ok(()), "{name}");
        }
        for (name, part) in [
            ("ibv_post", "has that name"),
            ("rdma_create_qp", "has that name"),
            ("ibv_wr_send", "cannot fail"),
            ("ibv_rate_to_mult", "cannot fail"),
        ] {
            assert!(may_fail(name).unwrap_err().contains(part), "{name}");
        }
    }
}
