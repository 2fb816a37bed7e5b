//! How a command ends: well, or with one line and an exit code.

use std::io::{ErrorKind, Write as _};

use crate::{config::ConfigError, listen::BindError};

/// What a command comes to.
pub(super) type Outcome = Result<(), Refusal>;

/// Why a command did not do what it was asked for. The codes are those of `sysexits.h`.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: u8,
    pub(super) what: String,
}

impl Refusal {
    /// The configuration, or something else that the user gave, cannot be used (`EX_USAGE`).
    pub(super) fn usage(what: impl Into<String>) -> Self {
        Self { code: 64, what: what.into() }
    }

    /// An address cannot be bound, or nobody answers there (`EX_UNAVAILABLE`).
    pub(super) fn unavailable(what: impl Into<String>) -> Self {
        Self { code: 69, what: what.into() }
    }

    /// What was asked for cannot be written (`EX_CANTCREAT`).
    pub(super) fn output(what: impl Into<String>) -> Self {
        Self { code: 73, what: what.into() }
    }

    /// Somebody may not do this (`EX_NOPERM`).
    pub(super) fn forbidden(what: impl Into<String>) -> Self {
        Self { code: 77, what: what.into() }
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<BindError> for Refusal {
    fn from(error: BindError) -> Self {
        Self::unavailable(error.to_string())
    }
}

/// Prints to standard output. A reader who has seen enough is none to complain to.
pub(super) fn say(text: &str) -> Outcome {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Refusal::output(format!("standard output: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Tells the user of something that is done, and will not work as it is.
pub(super) fn warn(what: &str) {
    // Without a standard error there is nobody to warn.
    let _ = writeln!(std::io::stderr(), "kas: warning: {what}");
}
