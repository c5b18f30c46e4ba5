//! The engine's behaviour: engines that talk over a wire made of function calls, under a virtual clock.

mod basic;
mod bytes;
mod congestion;
mod direct;
mod hostile;
mod keepalive;
mod links;
mod lone;
mod lossy;
mod manager;
mod mapped;
mod numbers;
mod parts;
mod posting;
mod ready;
mod reset;
mod rules;
mod siege;
mod slow;
mod states;
mod threads;
mod util;
mod witness;
