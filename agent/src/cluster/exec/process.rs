//! Runs a child process with limits of time and output, and kills it together with its own children.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    time::timeout,
};

/// The most bytes that a child may write to each of its outputs. A credential has some kilobytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// The process groups of all running children. They receive no signals of a terminal, so that agentk has to kill them before
/// it exits.
static RUNNING: Mutex<ProcessGroups> = Mutex::new(ProcessGroups { leaders: Vec::new(), exiting: false });

struct ProcessGroups {
    leaders: Vec<Pid>,
    /// True if agentk is about to exit: a new group is killed at once.
    exiting: bool,
}

/// A child that leads a process group. Dropping it before its end kills the whole group.
struct GroupLeader {
    child: Child,
    pid: Option<Pid>,
}

/// The exit status and the outputs of a child.
pub(super) struct ProcessOutput {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("cannot be started: {0}")]
    Start(io::Error),
    #[error("lost: {0}")]
    Lost(#[from] io::Error),
    #[error("did not finish within {0:?}")]
    Timeout(Duration),
    #[error("printed more than {} MiB", MAX_OUTPUT >> 20)]
    ProcessOutput,
}

/// Runs a command until it ends and its outputs are closed. After `time`, or beyond [`MAX_OUTPUT`], the command is killed
/// with all of its children.
pub(super) async fn run(command: &mut Command, time: Duration) -> Result<ProcessOutput, RunError> {
    let mut leader = GroupLeader::spawn(command).map_err(RunError::Start)?;
    let (stdout, stderr) = (leader.child.stdout.take(), leader.child.stderr.take());
    let running = async {
        let (stdout, stderr) = tokio::try_join!(read(stdout), read(stderr))?;
        // Last, since the operating system may reuse the process id after this.
        let status = leader.child.wait().await?;
        Ok(ProcessOutput { status, stdout, stderr })
    };

    timeout(time, running).await.unwrap_or(Err(RunError::Timeout(time)))
}

/// Kills the process groups of all children, also of those that are started later.
pub(super) fn kill_all() {
    let mut groups = RUNNING.lock();
    groups.exiting = true;
    groups.leaders.iter().copied().for_each(kill);
}

impl GroupLeader {
    fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let mut groups = RUNNING.lock();
            groups.leaders.push(pid);
            if groups.exiting {
                kill(pid);
            }
        }

        Ok(Self { child, pid })
    }
}

impl Drop for GroupLeader {
    fn drop(&mut self) {
        let Some(pid) = self.pid else { return };
        let mut groups = RUNNING.lock();
        groups.leaders.retain(|other| *other != pid);
        // The child has an id until its exit status is read.
        if self.child.id().is_some() {
            kill(pid);
        }
    }
}

fn kill(leader: Pid) {
    if let Err(error) = kill_process_group(leader, Signal::KILL) {
        tracing::debug!(%error, "cannot kill a process group");
    }
}

async fn read(output: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, RunError> {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        output.take(MAX_OUTPUT + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > MAX_OUTPUT { Err(RunError::ProcessOutput) } else { Ok(bytes) }
}
