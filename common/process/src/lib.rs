//! The process of kas and agentk: its log, signals, file descriptors, resources and liveness.
//!
//! * [`logs`] writes the log by a [`LineWriter`], without blocking the program, and logs panics. A [`LogLimiter`] bounds repeated lines.
//! * [`signals`] cancels a token on SIGTERM and Ctrl-C, and ends the process on the second one.
//! * [`child`] runs a program with limits, and kills it together with its own children.
//! * [`descriptors`] reads and raises the limit of open files.
//! * [`listen()`] binds the address of a listener.
//! * [`liveness`] detects blocked threads, and a [`Notifier`] sends messages to systemd.
//! * [`memory_limit()`] is the memory that a container or a service may use.
//! * [`resources`] has the metrics `process_*`.
#![warn(missing_docs)]

pub mod child;
pub mod descriptors;
mod line_writer;
mod listen;
pub mod liveness;
mod log_limiter;
pub mod logs;
mod memory_limit;
pub mod resources;
pub mod signals;
mod systemd;

pub use self::line_writer::LineWriter;
pub use self::listen::listen;
pub use self::log_limiter::LogLimiter;
pub use self::memory_limit::memory_limit;
pub use self::systemd::Notifier;
