//! The commands a simulated container has: echo, cat, true, false, hostname, date, and sh to combine them.

use super::super::clock;
use super::script::{self, When};
use super::session::{HungUp, Outcome, Output, Session};
use super::terminal::Line;

/// Runs a command line as the container's process.
pub(super) async fn run(
    session: &mut Session,
    command: &[String],
    hostname: &str,
) -> Result<Outcome, HungUp> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let program = words.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    let shell = Shell { hostname };
    session.greet().await?;
    let ended = match (program, words.as_slice()) {
        ("sh" | "bash" | "ash", [_, "-c", script, ..]) => shell.script(session, script, 0).await?,
        ("sh" | "bash" | "ash", [_]) => shell.interact(session).await?,
        _ => match shell.program(session, program, &words, Output::Stdout).await? {
            Some(code) => Ended::Here(code),
            None => {
                let name = words.first().unwrap_or(&"");
                return Ok(Outcome::NotStarted(format!(
                    "error executing command in simulated container: exec: \"{name}\": executable file not found in $PATH"
                )));
            }
        },
    };
    Ok(Outcome::Exited(ended.code()))
}

/// Whether a script came to its end or to an `exit`.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Here(u8),
    Shell(u8),
}

impl Ended {
    fn code(self) -> u8 {
        match self {
            Self::Here(code) | Self::Shell(code) => code,
        }
    }
}

const INTERRUPTED: u8 = 130;

struct Shell<'pod> {
    hostname: &'pod str,
}

impl Shell<'_> {
    /// Reads commands from stdin, with a prompt if there is a terminal.
    async fn interact(&self, session: &mut Session) -> Result<Ended, HungUp> {
        let prompt =
            if session.is_terminal() { format!("simulated:{}$ ", self.hostname) } else { String::new() };
        let mut code = 0;
        loop {
            session.write(Output::Stdout, &prompt).await?;
            match session.read_line().await? {
                Line::Text(line) => match self.script(session, &line, code).await? {
                    Ended::Here(after) => code = after,
                    exit @ Ended::Shell(_) => return Ok(exit),
                },
                Line::Interrupted => code = INTERRUPTED,
                Line::End => return Ok(Ended::Shell(code)),
            }
        }
    }

    async fn script(&self, session: &mut Session, script: &str, before: u8) -> Result<Ended, HungUp> {
        let steps = match script::parse(script) {
            Ok(steps) => steps,
            Err(why) => {
                session.write(Output::Stderr, &format!("sh: {why}\n")).await?;
                return Ok(Ended::Here(2));
            }
        };
        let mut code = before;
        for step in steps {
            let runs = match step.when {
                When::Always => true,
                When::Success => code == 0,
                When::Failure => code != 0,
            };
            if !runs {
                continue;
            }
            let output = if step.to_stderr { Output::Stderr } else { Output::Stdout };
            let words: Vec<&str> = step.words.iter().map(String::as_str).collect();
            let name = words.first().copied().unwrap_or_default();
            if name == "exit" {
                return Ok(Ended::Shell(words.get(1).map_or(code, |code| code.parse().unwrap_or(2))));
            }
            code = match self.program(session, name, &words, output).await? {
                Some(code) => code,
                None => {
                    session.write(Output::Stderr, &format!("sh: {name}: not found\n")).await?;
                    127
                }
            };
        }
        Ok(Ended::Here(code))
    }

    /// Runs a program, or finds that there is none.
    async fn program(
        &self,
        session: &mut Session,
        name: &str,
        words: &[&str],
        output: Output,
    ) -> Result<Option<u8>, HungUp> {
        let code = match (name, words) {
            ("echo", [_, "-n", words @ ..]) => {
                session.write(output, &words.join(" ")).await?;
                0
            }
            ("echo", [_, words @ ..]) => {
                session.write(output, &format!("{}\n", words.join(" "))).await?;
                0
            }
            ("cat", [_] | [_, "-"]) => cat(session, output).await?,
            ("cat", [_, file, ..]) => {
                session.write(Output::Stderr, &format!("cat: {file}: No such file or directory\n")).await?;
                1
            }
            ("true", _) => 0,
            ("false", _) => 1,
            ("hostname", _) => {
                session.write(output, &format!("{}\n", self.hostname)).await?;
                0
            }
            ("date", _) => {
                session.write(output, &format!("{}\n", clock::timestamp())).await?;
                0
            }
            _ => return Ok(None),
        };
        Ok(Some(code))
    }
}

async fn cat(session: &mut Session, output: Output) -> Result<u8, HungUp> {
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
