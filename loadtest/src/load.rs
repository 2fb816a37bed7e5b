//! The engine of every command: what is asked for, when, by how many connections, and what came of it.
//!
//! ```text
//!   Target (what to send) ─┐
//!   Plan (how much)        ├─► workers: a thread per core, many connections each ─► Tally ─► Report
//!   Schedule (when)       ─┘        client, session: one connection                    ├─► table, JSON
//!                                                                                       └─► plot (SVG)
//! ```

pub mod client;
pub mod failure;
pub mod options;
pub mod plot;
pub mod progress;
pub mod report;
pub mod schedule;
pub mod session;
pub mod table;
pub mod tally;
pub mod target;
pub mod workers;

pub use self::{
    failure::Failure, options::Options, report::Report, tally::Tally, target::Target, workers::Plan,
};
