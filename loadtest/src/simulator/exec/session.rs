//! One exec session: the channels of a process, multiplexed over a WebSocket by a leading byte.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::super::websocket::{Socket, Version};
use super::terminal::{Line, Terminal};

/// What the caller asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Where output goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    Stdout,
    Stderr,
}

/// How a command ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Exited(u8),
    /// It never started, for this reason.
    NotStarted(String),
}

/// The client went away, or the simulator stops.
#[derive(Debug)]
pub(super) struct HungUp;

#[derive(Debug)]
pub(super) struct Session {
    socket: Socket,
    version: Version,
    streams: Streams,
    terminal: Terminal,
    stdin_ended: bool,
}

impl Session {
    pub(super) fn new(socket: Socket, version: Version, streams: Streams) -> Self {
        let terminal = Terminal::new(streams.tty);
        Self { socket, version, streams, terminal, stdin_ended: !streams.stdin }
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.streams.tty
    }

    /// Tells the client that the process is there, as the kubelet does.
    pub(super) async fn greet(&mut self) -> Result<(), HungUp> {
        let channel = match self.streams {
            Streams { stdout: true, .. } => STDOUT,
            Streams { stderr: true, .. } => STDERR,
            _ => ERROR,
        };
        self.send(channel, &[]).await?;
        if !self.streams.tty {
            return Ok(());
        }
        // `kubectl` complains if it is hung up on before it could say how large its terminal is. Real
        // containers are never that fast, and other clients may never say it.
        let sized = tokio::time::timeout(FIRST_SIZE, self.first_size()).await;
        sized.unwrap_or(Ok(()))
    }

    /// Stdin as it comes; `None` at its end.
    pub(super) async fn read(&mut self) -> Result<Option<Bytes>, HungUp> {
        if let Some(typed) = self.terminal.take_unread() {
            return Ok(Some(typed));
        }
        self.receive().await
    }

    /// The next line of stdin, echoed if there is a terminal.
    pub(super) async fn read_line(&mut self) -> Result<Line, HungUp> {
        loop {
            if let Some(line) = self.terminal.next_line() {
                return Ok(line);
            }
            match self.receive().await? {
                Some(typed) => {
                    let echo = self.terminal.feed(&typed);
                    self.write_raw(Output::Stdout, &echo).await?;
                }
                None => return Ok(self.terminal.last_line()),
            }
        }
    }

    /// Output of a command, with the line ends a terminal needs.
    pub(super) async fn write(&mut self, output: Output, text: &str) -> Result<(), HungUp> {
        if self.streams.tty {
            self.write_raw(Output::Stdout, text.replace('\n', "\r\n").as_bytes()).await
        } else {
            self.write_raw(output, text.as_bytes()).await
        }
    }

    pub(super) async fn write_raw(&mut self, output: Output, data: &[u8]) -> Result<(), HungUp> {
        let (wanted, channel) = match output {
            Output::Stdout => (self.streams.stdout, STDOUT),
            Output::Stderr => (self.streams.stderr, STDERR),
        };
        if wanted && !data.is_empty() { self.send(channel, data).await } else { Ok(()) }
    }

    /// Says how the command ended, and hangs up.
    pub(super) async fn finish(mut self, outcome: &Outcome) -> Result<(), HungUp> {
        self.send(ERROR, status(outcome).to_string().as_bytes()).await?;
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        self.socket.close(Some(frame)).await.map_err(|_| HungUp)?;
        // Input nobody read would make the system reset the connection, and the output with it.
        let drain = async { while let Some(Ok(_)) = self.socket.next().await {} };
        tokio::time::timeout(DRAIN, drain).await.map_err(|_| HungUp)
    }

    async fn first_size(&mut self) -> Result<(), HungUp> {
        loop {
            match self.message().await? {
                (RESIZE, _) => return Ok(()),
                (STDIN, typed) if self.streams.stdin => {
                    let echo = self.terminal.feed(&typed);
                    self.write_raw(Output::Stdout, &echo).await?;
                }
                _ => {}
            }
        }
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, HungUp> {
        while !self.stdin_ended {
            match self.message().await? {
                (STDIN, data) if !data.is_empty() => return Ok(Some(data)),
                (CLOSE, channel) if self.version == Version::V5 => self.stdin_ended = channel[..] == [STDIN],
                // Resizes of a terminal that has no size, and channels there are not.
                _ => {}
            }
        }
        Ok(None)
    }

    /// The next message: its channel, and what it carries.
    async fn message(&mut self) -> Result<(u8, Bytes), HungUp> {
        loop {
            let mut message = match self.socket.next().await {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(HungUp),
                Some(Ok(Message::Binary(message))) => message,
                Some(Ok(Message::Text(message))) => message.into(),
                Some(Ok(_)) => continue,
            };
            if !message.is_empty() {
                let data = message.split_off(1);
                return Ok((message[0], data));
            }
        }
    }

    async fn send(&mut self, channel: u8, data: &[u8]) -> Result<(), HungUp> {
        let message = Bytes::from([&[channel], data].concat());
        self.socket.send(Message::Binary(message)).await.map_err(|_| HungUp)
    }
}

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

const FIRST_SIZE: Duration = Duration::from_millis(200);

/// How long the client may take to agree that it is over.
const DRAIN: Duration = Duration::from_secs(1);

fn status(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Exited(0) => json!({ "metadata": {}, "status": "Success" }),
        Outcome::Exited(code) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        Outcome::NotStarted(why) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("Internal error occurred: {why}"),
            "reason": "InternalError",
            "code": 500,
        }),
    }
}
