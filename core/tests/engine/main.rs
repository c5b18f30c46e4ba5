//! The engine's behaviour: engines that talk over a wire made of function calls, under a virtual
//! clock.

mod buf_and_wr;
mod byte_counters;
mod congestion;
mod connection_manager;
mod forged_packets;
mod hostile;
mod keepalive;
mod links;
mod local_equivalence;
mod operations;
mod packet_loss;
mod peer_write;
mod posting;
mod qp_numbers;
mod reset;
mod retries_and_states;
mod rnr;
mod silent_peers;
mod single_equivalence;
mod slow_memory;
mod threads;
mod transport_rules;
mod util;
