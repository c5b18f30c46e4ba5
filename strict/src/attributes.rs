//! Attributes of queue pairs that are allowed and will hurt.

use crate::like::Nic;
use crate::rules::Rule;
use gdrcore_core::verbs::types::{qp_attr_mask as mask, qp_state, QpAttr};

/// What is known of the program's ways.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ways {
    /// It asks for types of GIDs, or librdmacm chooses its index.
    pub knows_gid_types: bool,
    /// It takes attributes from the kernel, by `rdma_init_qp_attr` or librdmacm's calls, which set
    /// the longest RNR timer.
    pub takes_from_kernel: bool,
}

/// What a modify has set that will hurt. `gid_index`: that of the address vector, where GIDs have
/// one.
pub(crate) fn judge(
    (a, gid_index): (&QpAttr, Option<u8>),
    m: u32,
    ways: Ways,
    nic: Option<&Nic>,
) -> Vec<(Rule, String)> {
    let mut all = Vec::new();
    let zero = [
        (mask::TIMEOUT, a.timeout, Rule::TimeoutZero, "timeout"),
        (mask::RETRY_CNT, a.retry_cnt, Rule::NoRetries, "retry_cnt"),
        (mask::RNR_RETRY, a.rnr_retry, Rule::NoRnrRetries, "rnr_retry"),
        (mask::MIN_RNR_TIMER, a.min_rnr_timer, Rule::RnrTimerLongest, "min_rnr_timer"),
    ];
    for (bit, value, rule, name) in zero {
        let is_chosen = rule != Rule::RnrTimerLongest || !ways.takes_from_kernel;
        if m & bit != 0 && value == 0 && is_chosen {
            all.push((rule, format!("{name} is 0")));
        }
    }
    let Some(nic) = nic else { return all };
    if m & mask::RATE_LIMIT != 0 {
        all.push((Rule::AttributeRefused, "a rate, by the call that modifies it".into()));
    }
    if m & mask::STATE != 0 && a.qp_state == qp_state::SQD && !nic.has_sqd {
        all.push((Rule::AttributeRefused, format!("to SQD, which {} has not", nic.name)));
    }
    let atomics = [
        (mask::MAX_QP_RD_ATOMIC, a.max_rd_atomic, "max_rd_atomic"),
        (mask::MAX_DEST_RD_ATOMIC, a.max_dest_rd_atomic, "max_dest_rd_atomic"),
    ];
    for (bit, value, name) in atomics {
        if m & bit != 0 && value > nic.rd_atomic {
            let (nic, most) = (nic.name, nic.rd_atomic);
            all.push((Rule::LimitOfNic, format!("{name} {value}: {nic} has at most {most}")));
        }
    }
    let of_vector = gid_index.filter(|_| m & mask::AV != 0 && !ways.knows_gid_types);
    if let Some(index) = of_vector.filter(|n| nic.has_roce_v1 && n.is_multiple_of(2)) {
        let words = format!("sgid_index {index}, whose type the program has not asked for");
        all.push((Rule::GidRoceV1, words));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attributes_of_the_mask_are_judged() {
        let a = QpAttr { rnr_retry: 7, max_rd_atomic: 17, ..QpAttr::default() };
        let rules = |m, ways, nic: Option<&str>| -> Vec<Rule> {
            judge((&a, Some(0)), m, ways, nic.and_then(Nic::find))
                .into_iter()
                .map(|(rule, _)| rule)
                .collect()
        };
        let none = Ways::default();
        assert_eq!(rules(mask::STATE, none, Some("mlx5")), []);
        let both = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
        assert_eq!(rules(both, none, None), [Rule::TimeoutZero, Rule::NoRetries]);
        assert_eq!(rules(mask::MAX_QP_RD_ATOMIC, none, Some("mlx5")), [Rule::LimitOfNic]);
        assert_eq!(rules(mask::MAX_QP_RD_ATOMIC, none, Some("rxe")), []);
        assert_eq!(rules(mask::AV, none, Some("mlx5")), [Rule::GidRoceV1]);
        let knows = Ways { knows_gid_types: true, ..none };
        assert_eq!(rules(mask::AV, knows, Some("mlx5")), []);
        assert_eq!(rules(mask::MIN_RNR_TIMER, none, None), [Rule::RnrTimerLongest]);
        let takes = Ways { takes_from_kernel: true, ..none };
        assert_eq!(rules(mask::MIN_RNR_TIMER, takes, None), []);
        assert_eq!(rules(mask::AV, none, None), []);
        assert_eq!(rules(mask::RATE_LIMIT, none, Some("rxe")), [Rule::AttributeRefused]);
        assert_eq!(rules(mask::RATE_LIMIT, none, None), []);
        let sqd = QpAttr { qp_state: qp_state::SQD, ..a };
        let drained = |nic| judge((&sqd, None), mask::STATE, none, Nic::find(nic)).len();
        assert_eq!(["mlx5", "hns", "rxe", "efa", ""].map(drained), [1, 1, 0, 0, 0]);
    }
}
