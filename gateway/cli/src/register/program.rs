//! kubectl and helm, which run with the rights of the user.

use std::{io, process::Stdio, time::Duration};

use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
    time::timeout,
};

use crate::{CliError, table::printable};

/// The most bytes of each output that are kept.
const MAX_OUTPUT: u64 = 64 << 10;
/// The most characters of an output in an error.
const MAX_ERROR: usize = 1000;

/// A call of a program.
pub(super) struct ProgramCall {
    /// The name of the program on the `PATH`.
    pub(super) program: &'static str,
    /// The arguments, which have no secret.
    pub(super) arguments: Vec<String>,
    /// The standard input, which may have one.
    pub(super) input: Option<SecretString>,
    /// The time after which the program is killed.
    pub(super) limit: Duration,
}

/// The end of a program.
pub(super) struct ProgramEnd {
    /// It exited with 0.
    pub(super) is_success: bool,
    /// The standard output.
    pub(super) output: String,
    /// The standard error.
    pub(super) errors: String,
}

impl ProgramCall {
    /// Runs the program to its end.
    pub(super) async fn run(&self) -> Result<ProgramEnd, CliError> {
        let Self { program, limit, .. } = self;
        let ended = timeout(*limit, self.run_to_end()).await;
        let ended = ended.map_err(|_| {
            let command = self.command();
            CliError::unavailable(format!("{command} has not ended within {} s", limit.as_secs()))
        })?;
        ended.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                CliError::usage(format!("there is no {program} on the PATH: install it"))
            }
            _ => CliError::unavailable(format!("{program} cannot be run: {error}")),
        })
    }

    /// Runs the program to its end, which has to be a success. Returns its standard output.
    pub(super) async fn output(&self) -> Result<String, CliError> {
        let end = self.run().await?;
        if end.is_success { Ok(end.output) } else { Err(self.failure(&end)) }
    }

    /// Returns the error of a program that has failed.
    pub(super) fn failure(&self, end: &ProgramEnd) -> CliError {
        let text = if end.errors.trim().is_empty() { &end.output } else { &end.errors };
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        // The first line of helm and kubectl has the cause.
        let text: String = lines.join("; ").chars().take(MAX_ERROR).collect();
        let text = if text.is_empty() { "there is no message" } else { &text };
        CliError::unavailable(format!("{} failed: {}", self.command(), printable(text)))
    }

    /// Returns the program and its subcommand.
    fn command(&self) -> String {
        let words = self.arguments.iter().take_while(|argument| !argument.starts_with('-')).take(2);
        words.fold(self.program.to_owned(), |command, word| format!("{command} {}", printable(word)))
    }

    async fn run_to_end(&self) -> io::Result<ProgramEnd> {
        let mut command = Command::new(self.program);
        command.args(&self.arguments).kill_on_drop(true);
        command.stdin(if self.input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let (Some(mut stdin), Some(input)) = (stdin, &self.input) {
                // A program that ends before it has read all reports why.
                let _ = stdin.write_all(input.expose_secret().as_bytes()).await;
            }
        };
        let ((), output, errors, status) = tokio::join!(write, read(stdout), read(stderr), child.wait());
        let shown = |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            // A program may print an object that it does not accept.
            match &self.input {
                Some(input) => hide(&text, input),
                None => text,
            }
        };
        Ok(ProgramEnd { is_success: status?.success(), output: shown(output), errors: shown(errors) })
    }
}

/// Reads the beginning of an output, and drops the rest, so that the program does not wait for a reader.
async fn read(output: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut output) = output {
        // The bytes before an error are kept.
        let _ = (&mut output).take(MAX_OUTPUT).read_to_end(&mut kept).await;
        let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    }
    kept
}

/// Replaces the words of an input that are long enough to be secret.
fn hide(text: &str, input: &SecretString) -> String {
    let words = input.expose_secret().split(['"', ' ', '\n']).filter(|word| word.len() >= 20);
    words.fold(text.to_owned(), |text, word| text.replace(word, "[hidden]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: Option<SecretString>) -> ProgramCall {
        let arguments = ["-c", script].map(str::to_owned).to_vec();
        ProgramCall { program: "sh", arguments, input, limit: Duration::from_secs(30) }
    }

    #[tokio::test]
    async fn program_gets_the_secret_and_errors_do_not_have_it() {
        let secret = SecretString::from("{\"token\":\"glagent-0123456789abcdef\"}");
        let call = shell("cat; echo \"bad glagent-0123456789abcdef\" >&2; exit 3", Some(secret));
        let end = call.run().await.unwrap();
        assert!(!end.is_success && end.output == "{\"token\":\"[hidden]\"}", "{}", end.output);
        assert_eq!(call.failure(&end).message, "sh failed: bad [hidden]");
    }

    #[tokio::test]
    async fn long_output_is_cut_and_cannot_control_the_terminal() {
        let script = "head -c 1000000 /dev/zero | tr '\\0' a; printf 'a\\033[2J\\n' >&2; exit 1";
        let call = shell(script, None);
        let end = call.run().await.unwrap();
        assert_eq!(end.output.len(), 64 << 10);
        assert_eq!(call.failure(&end).message, "sh failed: a?[2J");
    }

    #[tokio::test]
    async fn program_that_is_missing_or_does_not_end_is_an_error() {
        let mut call = shell("sleep 60", None);
        call.limit = Duration::from_millis(50);
        let Err(error) = call.run().await else { panic!("it ended") };
        assert!(error.message.starts_with("sh has not ended within"), "{}", error.message);
        call.program = "no-such-program";
        let Err(error) = call.run().await else { panic!("it runs") };
        assert_eq!(error.message, "there is no no-such-program on the PATH: install it");
    }
}
