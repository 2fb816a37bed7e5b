//! Limits of a program that is not trusted.
//!
//! A process can only set its own limits without unsafe code, so kas starts itself with a hidden subcommand, which sets them and then
//! becomes the program.

use std::{
    convert::Infallible,
    ffi::OsString,
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, nice, setrlimit};

use crate::command::ProgramCommand;

/// The hidden subcommand of kas.
pub const SUBCOMMAND: &str = "run-limited";

/// The niceness of the programs, with which they leave the CPU to other processes.
const NICENESS: i32 = 10;
/// The most open files.
const FILES: u64 = 256;
/// The longest file that may be written, in bytes.
const FILE_BYTES: u64 = 64 << 20;

/// The limits of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time of the CPU, in seconds.
    cpu: u64,
    /// The memory, in bytes.
    memory: u64,
}

impl Limits {
    /// Returns limits for a program that may run for `time` and use `memory` bytes.
    pub(crate) fn new(time: Duration, memory: u64) -> Self {
        Self { cpu: time.as_secs().max(1), memory }
    }

    /// Returns the limits that a command line has named.
    pub fn of_arguments(cpu: u64, memory: u64) -> Self {
        Self { cpu, memory }
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
        limited.args([
            SUBCOMMAND,
            "--cpu",
            &self.cpu.to_string(),
            "--memory",
            &self.memory.to_string(),
            "--",
        ]);
        limited.arg(program).args(command.arguments.iter().map(ToString::to_string));
        limited
    }

    /// Sets the limits of this process, takes its network away where the kernel allows that, and becomes the program.
    ///
    /// # Errors
    ///
    /// A limit cannot be set, or the program cannot be executed.
    pub fn exec(self, program: PathBuf, arguments: Vec<OsString>) -> io::Result<Infallible> {
        let limits = [
            (Resource::Cpu, self.cpu),
            // Go reserves address space that it never uses, so that a limit of it (`RLIMIT_AS`) would be met at once.
            (Resource::Data, self.memory),
            (Resource::Nofile, FILES),
            (Resource::Fsize, FILE_BYTES),
            (Resource::Core, 0),
        ];
        for (resource, value) in limits {
            setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
        }
        // The requests of callers come first. It fails for nobody: it only makes this process slower.
        let _ = nice(NICENESS);
        // Containers often do not allow it. Then the programs are still not asked to fetch anything.
        let _ =
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER | nix::sched::CloneFlags::CLONE_NEWNET);
        Err(Command::new(program).args(arguments).exec())
    }
}
