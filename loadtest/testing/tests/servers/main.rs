//! The servers that tests and the demo start.

mod simulator;
mod standin;
