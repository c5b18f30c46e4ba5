//! NICs by their limits: facts of their drivers, from the sources that docs/using/STRICT.md names.

use gdrcore_core::verbs::types::{qp_type, QpCap};

/// A NIC.
#[derive(Debug, PartialEq, Eq)]
pub struct Nic {
    /// The name in `--like`.
    pub name: &'static str,
    /// Whether an unsignaled request frees its slot by itself.
    pub frees_unsignaled: bool,
    send_sge: u32,
    recv_sge: u32,
    inline: u32,
    /// READs and atomics outstanding, as requester and as responder.
    pub rd_atomic: u8,
    /// It has queue pairs of type RC.
    has_rc: bool,
    /// GIDs of even indexes are of RoCE v1.
    pub has_roce_v1: bool,
    /// A queue pair can be drained by SQD.
    pub has_sqd: bool,
}

/// rxe: drivers/infiniband/sw/rxe/rxe_param.h. hns: hns_roce_hw_v2.h, HIP08. mlx5: ConnectX-5,
/// whose inline data is limited by the longest request of the send queue. efa: first generation.
const NICS: &[Nic] = &[
    Nic {
        name: "mlx5",
        frees_unsignaled: false,
        send_sge: 30,
        recv_sge: 32,
        inline: 956,
        rd_atomic: 16,
        has_rc: true,
        has_roce_v1: true,
        has_sqd: false,
    },
    Nic {
        name: "rxe",
        frees_unsignaled: true,
        send_sge: 32,
        recv_sge: 32,
        inline: 512,
        rd_atomic: 128,
        has_rc: true,
        has_roce_v1: false,
        has_sqd: true,
    },
    Nic {
        name: "efa",
        frees_unsignaled: false,
        send_sge: 2,
        recv_sge: 3,
        inline: 32,
        rd_atomic: 0,
        has_rc: false,
        has_roce_v1: false,
        has_sqd: true,
    },
    Nic {
        name: "hns",
        frees_unsignaled: false,
        send_sge: 64,
        recv_sge: 64,
        inline: 32,
        rd_atomic: 128,
        has_rc: true,
        has_roce_v1: true,
        has_sqd: false,
    },
];

impl Nic {
    /// The NIC of a name.
    pub fn find(name: &str) -> Option<&'static Nic> {
        NICS.iter().find(|nic| nic.name == name)
    }

    /// What of a queue pair the NIC does not have, in words.
    pub fn lacks(&self, kind: u32, cap: &QpCap) -> Option<String> {
        let name = self.name;
        if kind == qp_type::RC && !self.has_rc {
            return Some(format!("{name} has no queue pairs of type RC"));
        }
        let rows = [
            ("max_send_sge", cap.max_send_sge, self.send_sge),
            ("max_recv_sge", cap.max_recv_sge, self.recv_sge),
            ("max_inline_data", cap.max_inline_data, self.inline),
        ];
        let (field, wanted, most) = rows.into_iter().find(|(_, wanted, most)| wanted > most)?;
        Some(format!("{field} {wanted}: {name} has at most {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_same_numbers() {
        let page = include_str!("../../docs/using/STRICT.md");
        let row = |head: &str| -> Vec<&str> {
            let line = page.lines().find(|line| line.starts_with(&format!("| {head} |")));
            line.expect(head).split('|').skip(2).map(str::trim).collect()
        };
        let word = |is| if is { "yes" } else { "no" }.to_string();
        let reads = |nic: &Nic| if nic.has_rc { nic.rd_atomic.to_string() } else { String::new() };
        for (i, nic) in NICS.iter().enumerate() {
            for (head, value) in [
                ("`max_send_sge`", nic.send_sge.to_string()),
                ("`max_recv_sge`", nic.recv_sge.to_string()),
                ("`max_inline_data`", nic.inline.to_string()),
                ("READs and atomics at a time", reads(nic)),
                ("type RC", word(nic.has_rc)),
                ("state SQD", word(nic.has_sqd)),
            ] {
                assert_eq!(row(head)[i], value, "{}: {head}", nic.name);
            }
        }
    }

    #[test]
    fn a_nic_names_the_first_limit_that_is_exceeded() {
        let mlx5 = Nic::find("mlx5").unwrap();
        let cap = QpCap { max_send_sge: 30, max_inline_data: 956, ..Default::default() };
        assert_eq!(mlx5.lacks(qp_type::RC, &cap), None);
        let more = QpCap { max_send_sge: 31, ..cap };
        let said = mlx5.lacks(qp_type::RC, &more).unwrap();
        assert_eq!(said, "max_send_sge 31: mlx5 has at most 30");
        assert!(Nic::find("efa").unwrap().lacks(qp_type::RC, &cap).unwrap().contains("type RC"));
        assert_eq!(Nic::find("mlx4"), None);
    }
}
