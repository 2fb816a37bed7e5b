//! Reads the files of kas and agentk: configuration, identities, certificates, tokens.
//!
//! * [`read()`] and [`read_text`] accept only regular files, and limit size and time. A named pipe in place of a file, or a
//!   file system that hangs, is an error and does not block the thread for ever.
//! * [`follow()`] reads a file again when it changes, and [`ReloadHealth`] reports the files whose last version was refused.
//! * [`WorkDirectory`] is a temporary directory that a later process removes if this one is killed.
#![warn(missing_docs)]

mod bounded;
mod follow;
mod health;
mod read;
mod sighup;
mod version;
mod work_directory;

pub use self::{
    follow::follow,
    health::{ReloadHealth, WatchedFile},
    read::{MAX_BYTES, metadata, read, read_text, read_text_at_most},
    sighup::reload_on_sighup,
    version::FileVersion,
    work_directory::{MIN_LEFT_BEHIND_AGE, WorkDirectory, remove_left_behind},
};
