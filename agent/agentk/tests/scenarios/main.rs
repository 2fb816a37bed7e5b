//! agentk as a library against a scripted kas over in-memory pipes, and against servers on loopback.

mod check;
mod dial;
mod gitlab;
mod namespace_labels;
mod policy;
mod prometheus;
mod proxy;
mod refusals;
mod services;
mod session;
mod support;
