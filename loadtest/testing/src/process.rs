//! Child processes whose output is captured and which are killed at the end of their test.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a failed step is a failed test, and these helpers are for tests without a runtime"
)]

use std::{
    io::{self, BufRead as _, BufReader, Read, Write as _},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, kill_process};

pub use rustix::process::Signal;

/// The timeout of every wait, long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(45);

/// A running program. Dropping it kills the process, and prints its output if the test has failed.
pub struct Process {
    name: String,
    child: Child,
    log: Arc<Log>,
    readers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Process {
    /// Starts a program. `name` is used in messages.
    pub fn start(name: &str, command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let log = Arc::new(Log::default());
        let readers = vec![
            read(child.stdout.take().unwrap(), Arc::clone(&log)),
            read(child.stderr.take().unwrap(), Arc::clone(&log)),
        ];
        Self { name: name.to_owned(), child, log, readers }
    }

    /// Waits for the first line of its output that matches `found`, among past and future lines.
    pub fn line(&self, what: &str, found: impl Fn(&str) -> bool) -> String {
        self.lines(1, what, found).remove(0)
    }

    /// Waits for the first `count` lines of its output that match `found`, among past and future lines.
    pub fn lines(&self, count: usize, what: &str, found: impl Fn(&str) -> bool) -> Vec<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut lines = self.log.lines.lock();
        loop {
            let matching: Vec<_> = lines.iter().filter(|line| found(line)).take(count).cloned().collect();
            if matching.len() == count {
                return matching;
            }
            let late = self.log.more.wait_until(&mut lines, deadline).timed_out();
            assert!(!late, "{} did not print in time: {what}", self.name);
        }
    }

    /// Returns its output so far.
    pub fn printed(&self) -> String {
        self.log.lines.lock().join("\n")
    }

    /// Returns whether it has not exited.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns its peak resident memory in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.memory("VmHWM")
    }

    /// Returns a figure of its resident memory in bytes: `VmRSS` is the current value, `VmHWM` the peak (proc(5)).
    pub fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL and waits until it has exited.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it exits and returns its exit code, or the negative number of the signal that ended it.
    pub fn exit_code(&mut self) -> i32 {
        let mut status = None;
        eventually(&format!("{} ends", self.name), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        code(status.unwrap())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        send_signal(self.child.id(), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            println!("--- output of {}:\n{}\n---", self.name, self.printed());
        }
    }
}

/// Sends a signal to a process.
///
/// # Errors
///
/// There is no such process, or it is that of another user.
pub fn send_signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, signal)?)
}

/// Runs a program to its end with the given standard input.
pub fn run(command: &mut Command, stdin: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let mut pipe = child.stdin.take().unwrap();
    thread::scope(|scope| {
        // The program may exit without reading all of it.
        scope.spawn(move || {
            let _ = pipe.write_all(stdin);
        });
        child.wait_with_output().unwrap()
    })
}

/// Returns the exit code, or the negative number of the signal.
pub fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;

    status.code().unwrap_or_else(|| -status.signal().unwrap())
}

/// Polls until `condition` returns true, and panics after a timeout. `what` is used in the message.
///
/// The pauses are a fifth of the time that has passed: a condition that starts a program would keep a processor busy otherwise.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        let passed = start.elapsed();
        assert!(passed < TIMEOUT, "not in time: {what}");
        thread::sleep((passed / 5).clamp(Duration::from_millis(25), Duration::from_millis(500)));
    }
}

fn read(pipe: impl Read + Send + 'static, log: Arc<Log>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            log.lines.lock().push(text);
            log.more.notify_all();
            line.clear();
        }
    })
}
