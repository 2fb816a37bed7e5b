//! The commands of a simulated container (`echo`, `cat`, `true`, `false`, and `sh` to run several of them), and its terminal.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Disconnected, ExecResult, ExecSession, Output};

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

/// The end of a script, with its exit code.
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

/// The result of reading a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of stdin.
    End,
}

#[derive(Debug)]
pub(super) struct Terminal {
    tty: bool,
    typed: Vec<u8>,
    lines: VecDeque<Line>,
}

impl Terminal {
    pub(super) fn new(tty: bool) -> Self {
        Self { tty, typed: Vec::new(), lines: VecDeque::new() }
    }

    pub(super) fn next_line(&mut self) -> Option<Line> {
        self.lines.pop_front()
    }

    /// Handles input. Returns its echo.
    pub(super) fn feed(&mut self, input: &[u8]) -> Vec<u8> {
        let mut echo = Vec::new();
        for &byte in input {
            match byte {
                b'\n' => self.end_line(),
                b'\r' if self.tty => {
                    echo.extend(b"\r\n");
                    self.end_line();
                }
                INTERRUPT if self.tty => {
                    echo.extend(b"^C\r\n");
                    self.typed.clear();
                    self.lines.push_back(Line::Interrupted);
                }
                END if self.tty => {
                    if self.typed.is_empty() {
                        self.lines.push_back(Line::End);
                    }
                }
                BACKSPACE | DELETE if self.tty => {
                    if self.typed.pop().is_some() {
                        echo.extend(b"\x08 \x08");
                    }
                }
                byte => {
                    echo.push(byte);
                    self.typed.push(byte);
                    if self.typed.len() == LONGEST {
                        self.end_line();
                    }
                }
            }
        }
        if self.tty { echo } else { Vec::new() }
    }

    /// Returns the rest when stdin has ended.
    pub(super) fn last_line(&mut self) -> Line {
        if self.typed.is_empty() {
            return Line::End;
        }
        self.end_line();
        self.lines.pop_front().unwrap_or(Line::End)
    }

    /// Returns input that was not read as lines.
    pub(super) fn take_unread(&mut self) -> Option<Bytes> {
        let mut unread = Vec::new();
        for line in self.lines.drain(..) {
            if let Line::Text(text) = line {
                unread.extend(text.into_bytes());
                unread.push(b'\n');
            }
        }
        unread.append(&mut self.typed);
        Some(unread).filter(|unread| !unread.is_empty()).map(Bytes::from)
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.typed).into_owned();
        self.typed.clear();
        self.lines.push_back(Line::Text(line));
    }
}

const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const BACKSPACE: u8 = 0x08;
const DELETE: u8 = 0x7f;

/// The length at which a line is split, so that input without line ends uses bounded memory.
const LONGEST: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_echoes_and_edits() {
        let mut terminal = Terminal::new(true);
        assert_eq!(terminal.feed(b"ex\x7fcho\r"), b"ex\x08 \x08cho\r\n");
        assert_eq!(terminal.next_line(), Some(Line::Text("echo".to_owned())));
        assert_eq!(terminal.feed(b"x\x03\x04"), b"x^C\r\n");
        assert_eq!(terminal.next_line(), Some(Line::Interrupted));
        assert_eq!(terminal.next_line(), Some(Line::End));
        assert_eq!(terminal.next_line(), None);
    }

    #[test]
    fn lines_without_terminal_are_split() {
        let mut terminal = Terminal::new(false);
        assert_eq!(terminal.feed(b"one\ntwo\n\x03three"), b"");
        assert_eq!(terminal.next_line(), Some(Line::Text("one".to_owned())));
        assert_eq!(terminal.take_unread().as_deref(), Some(b"two\n\x03three".as_slice()));
        assert_eq!(terminal.last_line(), Line::End);
    }
}
