//! The engine's behaviour: engines that talk over a wire made of function calls, under a virtual clock.

mod basic;
mod congestion;
mod direct;
mod hostile;
mod links;
mod lone;
mod lossy;
mod mapped;
mod parts;
mod posting;
mod reset;
mod rules;
mod slow;
mod states;
mod threads;
mod util;
