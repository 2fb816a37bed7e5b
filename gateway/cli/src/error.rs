//! The result of a command: success, or one line and an exit code.

use settings::ConfigError;
use std::io::{ErrorKind, Write as _};

/// The result of a command.
pub type CommandResult = Result<(), CliError>;

/// The error of a command. The codes are those of `sysexits.h`.
#[derive(Debug)]
pub struct CliError {
    /// The exit code of the process.
    pub code: u8,
    /// The cause and the remedy, on one line.
    pub message: String,
}

impl CliError {
    /// The command line or the configuration is invalid (`EX_USAGE`).
    pub const USAGE: u8 = 64;
    /// A server does not respond, or cannot serve the request now (`EX_UNAVAILABLE`).
    pub const UNAVAILABLE: u8 = 69;

    /// The configuration or another input is invalid (`EX_USAGE`).
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: Self::USAGE, message: message.into() }
    }

    /// An address cannot be bound, or a server does not respond (`EX_UNAVAILABLE`).
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Self::UNAVAILABLE, message: message.into() }
    }

    /// The program has a defect (`EX_SOFTWARE`).
    pub fn defect(message: impl Into<String>) -> Self {
        Self { code: 70, message: message.into() }
    }

    /// The output cannot be written (`EX_CANTCREAT`).
    pub fn output(message: impl Into<String>) -> Self {
        Self { code: 73, message: message.into() }
    }

    /// The caller lacks a permission (`EX_NOPERM`).
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { code: 77, message: message.into() }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

/// Prints to standard output. A closed pipe is not an error, because `head` closes it.
///
/// # Errors
///
/// If the output cannot be written.
pub fn print(text: &str) -> CommandResult {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::output(format!("standard output: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints a warning to standard error.
pub fn warn(message: &str) {
    // If standard error is closed, the warning is lost.
    let _ = writeln!(std::io::stderr(), "kas: warning: {message}");
}
