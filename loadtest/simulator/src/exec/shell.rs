//! The commands of a simulated container: `echo`, `cat`, `true`, `false`, and `sh` to run several of them.

use super::session::{Disconnected, ExecResult, ExecSession, Output};
use super::terminal::Line;

/// Runs a command line as the container's process.
pub(super) async fn run(
    session: &mut ExecSession,
    command: &[String],
    hostname: &str,
) -> Result<ExecResult, Disconnected> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let name = words.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    session.greet().await?;
    let code = match (name, words.as_slice()) {
        ("sh" | "bash", [_, "-c", script, ..]) => run_script(session, script, 0).await?.code(),
        ("sh" | "bash", [_]) => run_interactive(session, hostname).await?,
        _ => match run_program(session, name, &words, Output::Stdout).await? {
            Some(code) => code,
            None => {
                let name = words.first().unwrap_or(&"");
                return Ok(ExecResult::NotStarted(format!(
                    "error executing command in simulated container: exec: \"{name}\": executable file not found in $PATH"
                )));
            }
        },
    };
    Ok(ExecResult::Exited(code))
}

/// How a script ended, with its exit code.
#[derive(Clone, Copy, Debug)]
enum ScriptEnd {
    LastCommand(u8),
    Exit(u8),
}

impl ScriptEnd {
    fn code(self) -> u8 {
        match self {
            Self::LastCommand(code) | Self::Exit(code) => code,
        }
    }
}

const INTERRUPTED: u8 = 130;
const SYNTAX_ERROR: u8 = 2;
const NOT_FOUND: u8 = 127;

/// Runs each line of stdin, with a prompt if there is a terminal.
async fn run_interactive(session: &mut ExecSession, hostname: &str) -> Result<u8, Disconnected> {
    let prompt = if session.is_terminal() { format!("simulated:{hostname}$ ") } else { String::new() };
    let mut code = 0;
    loop {
        session.write(Output::Stdout, &prompt).await?;
        code = match session.read_line().await? {
            Line::Text(line) => match run_script(session, &line, code).await? {
                ScriptEnd::LastCommand(code) => code,
                ScriptEnd::Exit(code) => return Ok(code),
            },
            Line::Interrupted => INTERRUPTED,
            Line::End => return Ok(code),
        };
    }
}

/// Runs commands that are separated by `;` or line ends. A command may end in `>&2`. `code` is the exit code so far.
async fn run_script(
    session: &mut ExecSession,
    script: &str,
    mut code: u8,
) -> Result<ScriptEnd, Disconnected> {
    for command in script.split([';', '\n']).map(str::trim).filter(|command| !command.is_empty()) {
        let (command, output) = match command.strip_suffix(">&2") {
            Some(command) => (command, Output::Stderr),
            None => (command, Output::Stdout),
        };
        if command.contains(['\'', '"', '\\', '&', '|', '>', '<', '$', '`', '(']) {
            session.write(Output::Stderr, "sh: the simulated shell has only plain commands\n").await?;
            return Ok(ScriptEnd::LastCommand(SYNTAX_ERROR));
        }
        let words: Vec<&str> = command.split_whitespace().collect();
        let name = words.first().copied().unwrap_or_default();
        if name == "exit" {
            let code = words.get(1).map_or(code, |code| code.parse().unwrap_or(SYNTAX_ERROR));
            return Ok(ScriptEnd::Exit(code));
        }
        code = match run_program(session, name, &words, output).await? {
            Some(code) => code,
            None => {
                session.write(Output::Stderr, &format!("sh: {name}: not found\n")).await?;
                NOT_FOUND
            }
        };
    }
    Ok(ScriptEnd::LastCommand(code))
}

/// Runs a program and returns its exit code, or `None` if there is no such program.
async fn run_program(
    session: &mut ExecSession,
    name: &str,
    words: &[&str],
    output: Output,
) -> Result<Option<u8>, Disconnected> {
    let code = match (name, words) {
        ("echo", [_, words @ ..]) => {
            session.write(output, &format!("{}\n", words.join(" "))).await?;
            0
        }
        ("cat", [_]) => cat(session, output).await?,
        ("true", _) => 0,
        ("false", _) => 1,
        _ => return Ok(None),
    };
    Ok(Some(code))
}

async fn cat(session: &mut ExecSession, output: Output) -> Result<u8, Disconnected> {
    if !session.is_terminal() {
        while let Some(data) = session.read().await? {
            session.write_raw(output, &data).await?;
        }
        return Ok(0);
    }
    loop {
        match session.read_line().await? {
            Line::Text(line) => session.write(output, &format!("{line}\n")).await?,
            Line::Interrupted => return Ok(INTERRUPTED),
            Line::End => return Ok(0),
        }
    }
}
