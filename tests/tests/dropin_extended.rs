//! Extended queue pairs of the libibverbs drop-in (`ibv_wr_start` to `ibv_wr_complete`), structs
//! that other releases have longer or shorter, and calls of newer ones, as C programs see them.

use gdrcore_tests::dropin::says_ok;
use gdrcore_tests::skip;
use gdrcore_tests::tools::loopback;

/// FLUSH, as a program of rdma-core 45 or newer sees it.
#[test]
fn programs_flush_what_they_have_written() {
    if !says_ok("flush", &loopback(157, 1)) {
        skip!("no cc or libibverbs headers");
    }
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    if !says_ok("batches", &loopback(157, 2)) {
        skip!("no cc or libibverbs headers");
    }
}

#[test]
fn structs_of_other_releases_are_filled_to_their_end() {
    if !says_ok("longer", &loopback(157, 3)) {
        skip!("no cc or libibverbs headers");
    }
}

#[test]
fn buffers_of_the_library_and_registrations_of_every_kind() {
    if !says_ok("buffers", &loopback(157, 4)) {
        skip!("no cc or libibverbs headers");
    }
}

#[test]
fn every_field_of_a_completion_can_be_read() {
    if !says_ok("fields", &loopback(157, 6)) {
        skip!("no cc or libibverbs headers");
    }
}

#[test]
fn dma_handles_exported_memory_and_permissions() {
    if !says_ok("hints", &loopback(157, 5)) {
        skip!("no cc or libibverbs headers");
    }
}
