//! Limits of a program that is not trusted.
//!
//! A process can only set its own limits without unsafe code, so kas starts itself with a hidden subcommand, which sets them and then
//! becomes the program.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    env::consts::ARCH,
    ffi::OsString,
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    libc,
    sched::{CloneFlags, unshare},
};
use rustix::process::{Resource, Rlimit, nice, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

use crate::command::ProgramCommand;

/// The hidden subcommand of kas.
pub const SUBCOMMAND: &str = "run-limited";

/// The niceness of the programs, with which they leave the CPU to other processes.
const NICENESS: i32 = 10;
/// The most open files.
const FILES: u64 = 256;
/// The longest file that may be written, in bytes.
const FILE_BYTES: u64 = 64 << 20;
/// The variable with which jemalloc starts no thread: a process with several ones cannot leave its user namespace (unshare(2)).
const ONE_THREAD: (&str, &str) = ("_RJEM_MALLOC_CONF", "background_thread:false");
/// The exit code if the network cannot be taken away.
pub const NETWORK_STAYS: u8 = 78;

/// The limits of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time of the CPU, in seconds.
    cpu: u64,
    /// The memory, in bytes.
    memory: u64,
    /// The program runs also if its network cannot be taken away.
    allow_network: bool,
}

/// The reason why a program does not run with limits.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// A limit cannot be set, or the program cannot be executed.
    #[error("{0}")]
    Failed(#[from] io::Error),
    /// The kernel allows neither a network namespace nor a filter of system calls.
    #[error("its network cannot be taken away")]
    NetworkStays,
}

/// Returns whether the kernel lets a program of `limiter` take its own network away.
///
/// # Errors
///
/// The program cannot be started.
pub fn can_take_network_away(limiter: &Path) -> io::Result<bool> {
    let limits = Limits { cpu: 60, memory: 1 << 30, allow_network: false };
    let mut command = Command::new(limiter);
    command.env(ONE_THREAD.0, ONE_THREAD.1).args(limits.arguments()).arg(limiter).arg("--version");
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(status.code() != Some(NETWORK_STAYS.into()))
}

impl Limits {
    /// Returns limits for a program that may run for `time` and use `memory` bytes.
    pub(crate) fn new(time: Duration, memory: u64, allow_network: bool) -> Self {
        Self { cpu: time.as_secs().max(1), memory, allow_network }
    }

    /// Returns the limits that a command line has named.
    pub fn of_arguments(cpu: u64, memory: u64, allow_network: bool) -> Self {
        Self { cpu, memory, allow_network }
    }

    /// Returns the arguments of kas in front of the program.
    fn arguments(self) -> impl Iterator<Item = String> {
        let Self { cpu, memory, allow_network } = self;
        let always = [
            SUBCOMMAND.to_owned(),
            "--cpu".to_owned(),
            cpu.to_string(),
            "--memory".to_owned(),
            memory.to_string(),
        ];
        let network = allow_network.then(|| "--allow-network".to_owned());
        always.into_iter().chain(network).chain(["--".to_owned()])
    }

    /// Returns the command that runs a program with the limits.
    pub(crate) fn wrap(
        self,
        limiter: &Path,
        program: &Path,
        command: &mut ProgramCommand,
    ) -> tokio::process::Command {
        let mut limited = tokio::process::Command::new(limiter);
        limited.current_dir(&command.directory).env_clear().envs(command.environment.drain(..));
        // The collector of Go's memory works harder before the limit is met.
        limited.env("GOMEMLIMIT", (self.memory / 10 * 8).to_string());
        limited.env(ONE_THREAD.0, ONE_THREAD.1).args(self.arguments());
        limited.arg(program).args(command.arguments.iter().map(ToString::to_string));
        limited
    }

    /// Sets the limits of this process, takes its network away, and becomes the program.
    ///
    /// # Errors
    ///
    /// A limit cannot be set, the network cannot be taken away, or the program cannot be executed.
    pub fn exec(self, program: PathBuf, arguments: Vec<OsString>) -> Result<Infallible, LimitError> {
        let limits = [
            (Resource::Cpu, self.cpu),
            // Go reserves address space that it never uses, so that a limit of it (`RLIMIT_AS`) would be met at once.
            (Resource::Data, self.memory),
            (Resource::Nofile, FILES),
            (Resource::Fsize, FILE_BYTES),
            (Resource::Core, 0),
        ];
        for (resource, value) in limits {
            let limit = Rlimit { current: Some(value), maximum: Some(value) };
            setrlimit(resource, limit).map_err(io::Error::from)?;
        }
        // The requests of callers come first. It fails for nobody: it only makes this process slower.
        let _ = nice(NICENESS);
        // Both, because many containers allow only the filter.
        let has_namespace = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).is_ok();
        let has_filter = refuse_sockets().is_ok();
        if !(has_namespace || has_filter || self.allow_network) {
            return Err(LimitError::NetworkStays);
        }
        Err(Command::new(program).args(arguments).env_remove(ONE_THREAD.0).exec().into())
    }
}

/// Refuses the system calls with which this process could open a socket.
fn refuse_sockets() -> Result<(), seccompiler::Error> {
    let calls = [libc::SYS_socket, libc::SYS_io_uring_setup];
    let rules: BTreeMap<_, _> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EACCES.unsigned_abs());
    let architecture: TargetArch = ARCH.try_into()?;
    let filter: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture)?.try_into()?;
    apply_filter(&filter)
}
