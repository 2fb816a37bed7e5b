//! The signals that stop a program.

use std::{io, thread};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
    low_level,
};
use tokio_util::sync::CancellationToken;

/// The exit code after the second signal.
const EXIT_CODE: i32 = 1;

/// Returns a token that the first SIGTERM or SIGINT (Ctrl-C) cancels. The second signal calls `before_exit` and ends the
/// process with exit code 1.
///
/// A thread waits for the signals, so they also end a process whose runtime is blocked.
///
/// # Errors
///
/// If the system refuses the handlers or the thread.
pub fn stop_token(before_exit: impl FnOnce() + Send + 'static) -> io::Result<CancellationToken> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let token = CancellationToken::new();
    let stop = token.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut signals = signals.forever();
        signals.next();
        stop.cancel();
        signals.next();
        before_exit();
        low_level::exit(EXIT_CODE);
    })?;
    Ok(token)
}
