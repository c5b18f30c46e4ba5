//! The engine's behaviour: engines that talk over a wire made of function calls, under a virtual clock.

mod basic;
mod hostile;
mod lossy;
mod parts;
mod states;
mod util;
