//! Child processes whose output is read as it comes, and which do not outlive their test.

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// Longer than anything here should take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(45);

/// A program that runs beside the test.
pub(crate) struct Process {
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
    /// Starts a program; `name` is for messages.
    pub(crate) fn start(name: &str, command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let log = Arc::new(Log::default());
        let readers = vec![
            read(child.stdout.take().unwrap(), Arc::clone(&log)),
            read(child.stderr.take().unwrap(), Arc::clone(&log)),
        ];
        Self { name: name.to_owned(), child, log, readers }
    }

    /// The first line, of those printed or yet to come, that this is true of.
    pub(crate) fn line(&self, what: &str, found: impl Fn(&str) -> bool) -> String {
        self.lines(1, what, found).remove(0)
    }

    /// The first `count` lines, of those printed or yet to come, that this is true of.
    pub(crate) fn lines(&self, count: usize, what: &str, found: impl Fn(&str) -> bool) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.log.lines.lock();
        loop {
            let matching: Vec<_> = lines.iter().filter(|line| found(line)).take(count).cloned().collect();
            if matching.len() == count {
                return matching;
            }
            let late = self.log.more.wait_until(&mut lines, deadline).timed_out();
            assert!(!late, "{} did not say in time: {what}", self.name);
        }
    }

    /// Everything printed until now.
    pub(crate) fn printed(&self) -> String {
        self.log.lines.lock().join("\n")
    }

    /// Whether it has not ended.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The most memory that it ever had, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.memory("VmHWM")
    }

    /// Its memory in bytes: `VmRSS` is what it has, `VmHWM` the most that it had (proc(5)).
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Asks it to stop.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Takes it away, without a word to anybody.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its exit code, once it ends by itself; negative for the signal that ended it.
    pub(crate) fn exit_code(&mut self) -> i32 {
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

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            println!("--- {} said:\n{}\n---", self.name, self.printed());
        }
    }
}

/// Runs a program to its end, with this on its standard input.
pub(crate) fn run(command: &mut Command, stdin: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let mut pipe = child.stdin.take().unwrap();
    thread::scope(|scope| {
        // A program that ends without reading all of it is free to do so.
        scope.spawn(move || {
            let _ = pipe.write_all(stdin);
        });
        child.wait_with_output().unwrap()
    })
}

/// The exit code; negative for a signal.
pub(crate) fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;

    status.code().unwrap_or_else(|| -status.signal().unwrap())
}

/// Looks until it is so, within a bound.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "this did not happen in time: {what}");
        thread::sleep(Duration::from_millis(25));
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
