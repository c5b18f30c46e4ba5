//! The rules: the name of each, what it says, and where it comes from.

macro_rules! rules {
    ($($id:ident = $name:literal: $words:literal, $source:literal;)*) => {
        /// A rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rule { $(
            #[doc = $words]
            $id
        ),* }

        /// Name, words and source of each rule, in the order of [`Rule`].
        const TABLE: &[(&str, &str, &str)] = &[$(($name, $words, $source)),*];
    };
}

rules! {
    NeverSignaled = "send-queue-never-signaled":
        "A slot of a send queue is free when a completion of its request, or of a later one of the \
         queue, has been polled; of the requests that fill this queue none asks for a completion, \
         so it stays full",
        "ibv_post_send(3), IBV_SEND_SIGNALED; mlx5 (rdma-core providers/mlx5/wq.h counts its tail \
         in mlx5_poll_cq)";
    SendQueueFull = "send-queue-full":
        "A slot of a send queue is free when a completion of its request, or of a later one of the \
         queue, has been polled",
        "ibv_post_send(3): ENOMEM; mlx5";
    CqOverrun = "cq-overrun":
        "A CQ must have room for all completions that are not polled; one without room is lost, \
         and the CQ and its queue pairs fail (IBV_EVENT_CQ_ERR)",
        "ibv_poll_cq(3), ibv_get_async_event(3)";
    CqFailed = "cq-failed":
        "A CQ must have room for all completions that are not polled, those of receive requests \
         too; this one was full when one came, which is lost, and it and its queue pairs have \
         failed",
        "ibv_get_async_event(3): IBV_EVENT_CQ_ERR";
    SendChanged = "send-buffer-changed":
        "The buffer of a request belongs to the device until its completion has been polled, \
         unless it was posted inline",
        "ibv_post_send(3)";
    RecvChanged = "recv-buffer-changed":
        "The buffer of a receive request belongs to the device until its completion has been \
         polled",
        "ibv_post_recv(3)";
    RegionInUse = "region-in-use":
        "A memory region stays until the requests that name it have completed",
        "ibv_dereg_mr(3)";
    MemoryUnmapped = "memory-unmapped":
        "Memory stays mapped while requests are on it",
        "ibv_reg_mr(3)";
    BuffersOverlap = "buffers-overlap":
        "Buffers of requests that are outstanding at the same time do not overlap if one of them \
         is written, because nothing orders the accesses",
        "ibv_post_send(3), ibv_post_recv(3)";
    MissingFence = "missing-fence":
        "A READ or atomic may still run when later requests of its queue pair do, unless they have \
         IBV_SEND_FENCE or its completion has been polled",
        "ibv_post_send(3), IBV_SEND_FENCE";
    RemoteOverlap = "remote-writes-overlap":
        "WRITEs of different queue pairs are not ordered, so two of them that are outstanding at \
         the same time do not write the same remote bytes",
        "IBTA volume 1: the order is that of one queue pair";
    RkeyEnded = "rkey-ended":
        "A remote key is over when its region is deregistered, its window deallocated, or the key \
         invalidated; a request that names it then ends the connection, or reaches other memory",
        "ibv_dereg_mr(3), ibv_post_send(3): IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV";
    EventMissed = "event-missed":
        "A CQ raises an event for completions that come after it was armed; those that came before \
         are found by a poll between ibv_req_notify_cq and the wait",
        "ibv_req_notify_cq(3), ibv_get_cq_event(3)";
    AhInUse = "ah-in-use":
        "An address handle stays until the requests that name it have completed",
        "ibv_post_send(3)";
    EventsUnacknowledged = "events-unacknowledged":
        "Each event that was taken must be acknowledged; the destruction of its object waits for \
         that",
        "ibv_ack_cq_events(3), ibv_ack_async_event(3)";
    ObjectLeft = "object-left":
        "An object is destroyed before the process ends",
        "man pages of the verbs; the kernel destroys what is left";
    TimeoutZero = "timeout-zero":
        "An ACK timeout of 0 means that the queue pair waits for ever: a lost packet stops it",
        "ibv_modify_qp(3), timeout; IBTA volume 1, C9-140";
    NoRetries = "no-retries":
        "With a retry_cnt of 0 one lost packet ends the connection",
        "ibv_modify_qp(3), retry_cnt";
    NoRnrRetries = "no-rnr-retries":
        "With an rnr_retry of 0 one message that comes before its receive request ends the \
         connection",
        "ibv_modify_qp(3), rnr_retry";
    RnrTimerLongest = "rnr-timer-longest":
        "A min_rnr_timer of 0 is the longest, 655.36 ms",
        "ibv_modify_qp(3), min_rnr_timer";
    AttributeRefused = "attribute-refused":
        "A NIC takes the attributes and states of its driver's table alone: a rate of queue pairs \
         of raw packets, and on mlx5 and hns no SQD",
        "Linux drivers/infiniband/core/verbs.c, qp_state_table; hw/mlx5/qp.c, the table of \
         commands by states";
    ForkUnprepared = "fork-unprepared":
        "A process that has registered memory calls ibv_fork_init before it forks, or else pages \
         may change under the device, with kernels before 5.12",
        "ibv_fork_init(3)";
    LimitOfNic = "limit-of-nic":
        "The NIC of --like has less than the program asks for",
        "the table of NICs in docs/using/STRICT.md";
    GidRoceV1 = "gid-roce-v1":
        "A GID index has a type, which ibv_query_gid_ex tells; on mlx5 and hns those of even \
         numbers are usually of RoCE v1, which no router forwards and no RoCE v2 peer takes",
        "ibv_query_gid_ex(3); mlx5, /sys/class/infiniband/*/ports/*/gid_attrs/types";
}

impl Rule {
    /// Its name.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].0
    }

    /// What it says.
    pub fn words(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The man page, or the section of the standard.
    pub fn source(self) -> &'static str {
        TABLE[self as usize].2
    }
}

/// The names of all rules.
pub fn rule_names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, ..)| *name)
}

/// Whether a rule has this name.
pub fn is_known(name: &str) -> bool {
    rule_names().any(|n| n == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_in_the_page_by_its_name() {
        let page = include_str!("../../docs/using/STRICT.md");
        for (name, words, source) in TABLE {
            assert!(page.contains(&format!("`{name}`")), "{name}");
            assert!(!words.is_empty() && !source.is_empty(), "{name}");
        }
        assert!(is_known(Rule::MissingFence.name()) && !is_known("missing"));
    }
}
