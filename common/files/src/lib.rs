//! Reads the files of kas and agentk: configuration, identities, certificates, tokens.
//!
//! * [`read()`] and [`read_text`] accept only regular files, and limit size and time. A named pipe in place of a file, or a
//!   file system that hangs, is an error and does not block the thread for ever.
//! * [`read_config`] and [`SecretFile`] read what a configuration names, with errors that name its key.
//! * [`follow()`] reads a file again when it changes, and [`ReloadHealth`] reports the files whose last version was refused.
//! * [`WorkDirectory`] is a temporary directory that a later process removes if this one is killed.
#![warn(missing_docs)]

mod bounded;
mod config;
mod follow;
mod health;
mod read;
mod secret_file;
mod sighup;
mod version;
mod work_directory;

pub use self::{
    config::{read_config, unreadable},
    follow::follow,
    health::{ReloadHealth, WatchedFile},
    read::{MAX_BYTES, metadata, read, read_text, read_text_at_most},
    secret_file::SecretFile,
    sighup::reload_on_sighup,
    version::FileVersion,
    work_directory::{MIN_LEFT_BEHIND_AGE, WorkDirectory, remove_left_behind},
};
