//! The engine's behaviour: engines that talk over a wire made of function calls, under a virtual
//! clock.

mod basic;
mod bytes;
mod congestion;
mod hostile;
mod keepalive;
mod links;
mod local;
mod lossy;
mod manager;
mod numbers;
mod parts;
mod peer_write;
mod posting;
mod ready;
mod reset;
mod rules;
mod siege;
mod single;
mod slow;
mod states;
mod threads;
mod util;
mod witness;
