//! Git over the program `ssh`, without the configuration files of a user.

use std::{
    ffi::OsString,
    io::{self, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use gix_transport::{
    Protocol,
    client::git::{ConnectMode, blocking_io},
};
use parking_lot::Mutex;

use super::{objects::invalid, protocol::GitConnection};
use crate::{Location, RepositoryError};

/// The most bytes of the messages of `ssh` that are read.
const MAX_MESSAGES: u64 = 16 << 10;
/// The last lines of them are shown, because the reason is at the end: a changed host key has a banner of ten lines before it.
const LAST_LINES: usize = 3;
/// The most characters of an error of `ssh` that are shown.
const MAX_ERROR: usize = 500;

/// Starts the program `ssh`. Its output has at most `max_bytes` bytes.
pub(super) fn connect(
    program: &Path,
    location: &Location,
    max_bytes: u64,
) -> Result<GitConnection, RepositoryError> {
    let Location::Ssh { path, .. } = location else {
        return Err(invalid("not a location for ssh".to_owned()));
    };
    let mut command = Command::new(program);
    command
        .args(arguments(location))
        .env("GIT_PROTOCOL", "version=2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => invalid("the program ssh is not installed".to_owned()),
        _ => invalid(format!("ssh cannot be started: {error}")),
    })?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(invalid("ssh has no pipes".to_owned()));
    };
    let (child, exceeded) = (Arc::new(Mutex::new(child)), Arc::new(AtomicBool::new(false)));
    let reader = Output {
        inner: stdout,
        remaining: max_bytes,
        exceeded: Arc::clone(&exceeded),
        child: Arc::clone(&child),
        started: false,
    };
    let transport = blocking_io::Connection::new(
        reader,
        stdin,
        Protocol::V2,
        path.as_str(),
        None::<(&str, _)>,
        ConnectMode::Process,
        false,
    );
    Ok(GitConnection { transport: Box::new(transport), exceeded, guard: Box::new(KillOnDrop(child)) })
}

/// Returns the arguments of `ssh`. They neither read a user's configuration nor ask questions.
fn arguments(location: &Location) -> Vec<OsString> {
    let Location::Ssh { destination, port, path, key_file, known_hosts_file } = location else {
        return Vec::new();
    };
    let mut arguments: Vec<OsString> = ["-T", "-F", "/dev/null"].map(Into::into).into();
    let mut option = |option: &str| arguments.extend(["-o".into(), option.into()]);
    for each in [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ConnectTimeout=10",
        "ServerAliveInterval=10",
        "ClearAllForwardings=yes",
        "ForwardAgent=no",
        "PermitLocalCommand=no",
        "LogLevel=ERROR",
        "SendEnv=GIT_PROTOCOL",
    ] {
        option(each);
    }
    if key_file.is_some() {
        option("IdentitiesOnly=yes");
    }
    if let Some(file) = known_hosts_file {
        option("GlobalKnownHostsFile=/dev/null");
        arguments.push("-o".into());
        let mut value = OsString::from("UserKnownHostsFile=");
        value.push(file);
        arguments.push(value);
    }
    if let Some(file) = key_file {
        arguments.extend(["-i".into(), file.into()]);
    }
    if let Some(port) = port {
        arguments.extend(["-p".into(), port.to_string().into()]);
    }
    // The path has no quotes: `RepositorySettings` refuses them.
    arguments.extend(["--".into(), destination.into(), format!("git-upload-pack '{path}'").into()]);
    arguments
}

/// The output of `ssh`.
struct Output<R> {
    inner: R,
    remaining: u64,
    exceeded: Arc<AtomicBool>,
    child: Arc<Mutex<Child>>,
    started: bool,
}

impl<R: Read> Read for Output<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && !self.started {
            return Err(io::Error::other(format!("ssh failed: {}", error_output(&self.child))));
        }
        self.started = true;
        match self.remaining.checked_sub(u64::try_from(read).unwrap_or(u64::MAX)) {
            Some(remaining) => self.remaining = remaining,
            None => {
                self.exceeded.store(true, Relaxed);
                return Err(io::Error::other("the response is too large"));
            }
        }
        Ok(read)
    }
}

/// Returns what `ssh` has written to standard error, after it has closed its output.
fn error_output(child: &Mutex<Child>) -> String {
    let stderr = child.lock().stderr.take();
    let mut text = Vec::new();
    if let Some(stderr) = stderr {
        // The guard ends the program, and with it this read.
        let _ = stderr.take(MAX_MESSAGES).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let text: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = text.len().saturating_sub(LAST_LINES);
    text[last..].join("; ").escape_debug().take(MAX_ERROR).collect()
}

/// Kills the program.
struct KillOnDrop(Arc<Mutex<Child>>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let mut child = self.0.lock();
        // It fails if the program has ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_reads_no_configuration_of_a_user_and_checks_the_host_key() {
        let location = Location::Ssh {
            destination: "git@example.com".to_owned(),
            port: Some(2222),
            path: "group/project.git".to_owned(),
            key_file: Some("/etc/kas/key".into()),
            known_hosts_file: Some("/etc/kas/known_hosts".into()),
        };
        let arguments: Vec<String> =
            arguments(&location).into_iter().map(|it| it.into_string().unwrap()).collect();
        let text = arguments.join(" ");
        for expected in [
            "-F /dev/null",
            "-o StrictHostKeyChecking=yes",
            "-o BatchMode=yes",
            "-o UserKnownHostsFile=/etc/kas/known_hosts",
            "-o IdentitiesOnly=yes",
            "-i /etc/kas/key -p 2222 -- git@example.com git-upload-pack 'group/project.git'",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
    }
}
