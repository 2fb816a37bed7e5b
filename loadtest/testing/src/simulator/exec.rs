//! `pods/exec` over WebSocket: sessions, whose streams are multiplexed over one connection.

mod shell;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::OnUpgrade;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::{CloseFrame, frame::coding::CloseCode},
};

use self::shell::{Line, Terminal};
use crate::simulator::{
    cluster::Cluster,
    pods::check_container,
    request::ApiRequest,
    resources::PODS,
    response::{ApiResponse, StatusError},
    store::Key,
    websocket::{self, Socket, Version},
};

pub(crate) fn answer(mut call: ApiRequest, key: &Key) -> Result<ApiResponse, StatusError> {
    let pod = call.cluster.store.get(key).ok_or_else(|| StatusError::not_found(&PODS, &key.name))?;
    check_container(&pod, &call.query)?;
    let command: Vec<String> = call.query.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(StatusError::bad_request("you must specify at least 1 command"));
    }
    let (version, reply) = websocket::switch(call.request.headers(), [Version::V5, Version::V4])?;
    let streams = Streams {
        stdin: call.query.flag("stdin"),
        stdout: call.query.flag("stdout"),
        stderr: call.query.flag("stderr"),
        tty: call.query.flag("tty"),
    };
    let upgrade = hyper::upgrade::on(&mut call.request);
    let cluster = Arc::clone(&call.cluster);
    let hostname = key.name.clone();
    call.cluster.tasks.spawn(async move {
        let _open = cluster.open_stream();
        if let Err(Disconnected) = run(&cluster, upgrade, version, streams, &command, &hostname).await {
            tracing::debug!(pod = hostname, "exec ended before its command");
        }
    });
    Ok(reply)
}

async fn run(
    cluster: &Cluster,
    upgrade: OnUpgrade,
    version: Version,
    streams: Streams,
    command: &[String],
    hostname: &str,
) -> Result<(), Disconnected> {
    let socket = websocket::accept(upgrade).await.map_err(|_| Disconnected)?;
    let mut session = ExecSession::new(socket, version, streams);
    tokio::select! {
        outcome = shell::run(&mut session, command, hostname) => session.finish(&outcome?).await,
        () = cluster.stop.cancelled() => Err(Disconnected),
    }
}

/// The streams that the caller requested.
#[expect(clippy::struct_excessive_bools, reason = "each is a parameter of the query")]
#[derive(Clone, Copy, Debug)]
struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// The stream of an output.
#[derive(Clone, Copy, Debug)]
enum Output {
    Stdout,
    Stderr,
}

/// The result of a command.
#[derive(Debug)]
enum ExecResult {
    Exited(u8),
    /// The command did not start, for this reason.
    NotStarted(String),
}

/// The error if the client has closed the connection or the simulator stops.
#[derive(Debug)]
struct Disconnected;

#[derive(Debug)]
struct ExecSession {
    socket: Socket,
    version: Version,
    streams: Streams,
    terminal: Terminal,
    stdin_ended: bool,
}

impl ExecSession {
    fn new(socket: Socket, version: Version, streams: Streams) -> Self {
        let terminal = Terminal::new(streams.tty);
        Self { socket, version, streams, terminal, stdin_ended: !streams.stdin }
    }

    fn is_terminal(&self) -> bool {
        self.streams.tty
    }

    /// Sends the empty message with which the kubelet announces the process.
    async fn greet(&mut self) -> Result<(), Disconnected> {
        let channel = match self.streams {
            Streams { stdout: true, .. } => STDOUT,
            Streams { stderr: true, .. } => STDERR,
            _ => ERROR,
        };
        self.send(channel, &[]).await?;
        if !self.streams.tty {
            return Ok(());
        }
        // `kubectl` reports an error if the connection is closed before it has sent the size of its terminal. Real
        // containers are never that fast, and other clients may never send it.
        let sized = tokio::time::timeout(FIRST_SIZE, self.first_size()).await;
        sized.unwrap_or(Ok(()))
    }

    /// Reads bytes of stdin, or `None` at its end.
    async fn read(&mut self) -> Result<Option<Bytes>, Disconnected> {
        if let Some(typed) = self.terminal.take_unread() {
            return Ok(Some(typed));
        }
        self.receive().await
    }

    /// Reads a line of stdin, and echoes it if there is a terminal.
    async fn read_line(&mut self) -> Result<Line, Disconnected> {
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

    /// Writes output with the line ends of the terminal, if there is one.
    async fn write(&mut self, output: Output, text: &str) -> Result<(), Disconnected> {
        if self.streams.tty {
            self.write_raw(Output::Stdout, text.replace('\n', "\r\n").as_bytes()).await
        } else {
            self.write_raw(output, text.as_bytes()).await
        }
    }

    async fn write_raw(&mut self, output: Output, data: &[u8]) -> Result<(), Disconnected> {
        let (wanted, channel) = match output {
            Output::Stdout => (self.streams.stdout, STDOUT),
            Output::Stderr => (self.streams.stderr, STDERR),
        };
        if wanted && !data.is_empty() { self.send(channel, data).await } else { Ok(()) }
    }

    /// Sends the result of the command and closes the connection.
    async fn finish(mut self, outcome: &ExecResult) -> Result<(), Disconnected> {
        self.send(ERROR, status(outcome).to_string().as_bytes()).await?;
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        self.socket.close(Some(frame)).await.map_err(|_| Disconnected)?;
        // Unread input would make the system reset the connection, and the output would be lost.
        let drain = async { while let Some(Ok(_)) = self.socket.next().await {} };
        tokio::time::timeout(DRAIN, drain).await.map_err(|_| Disconnected)
    }

    async fn first_size(&mut self) -> Result<(), Disconnected> {
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

    async fn receive(&mut self) -> Result<Option<Bytes>, Disconnected> {
        while !self.stdin_ended {
            match self.message().await? {
                (STDIN, data) if !data.is_empty() => return Ok(Some(data)),
                (CLOSE, channel) if self.version == Version::V5 => self.stdin_ended = channel[..] == [STDIN],
                // Ignore resizes and unknown channels.
                _ => {}
            }
        }
        Ok(None)
    }

    /// Receives the next message. Returns its channel and its payload.
    async fn message(&mut self) -> Result<(u8, Bytes), Disconnected> {
        loop {
            let mut message = match self.socket.next().await {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Disconnected),
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

    async fn send(&mut self, channel: u8, data: &[u8]) -> Result<(), Disconnected> {
        let message = Bytes::from([&[channel], data].concat());
        self.socket.send(Message::Binary(message)).await.map_err(|_| Disconnected)
    }
}

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

const FIRST_SIZE: Duration = Duration::from_millis(200);

/// The timeout of the close handshake.
const DRAIN: Duration = Duration::from_secs(1);

fn status(outcome: &ExecResult) -> Value {
    match outcome {
        ExecResult::Exited(0) => json!({ "metadata": {}, "status": "Success" }),
        ExecResult::Exited(code) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        ExecResult::NotStarted(why) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("Internal error occurred: {why}"),
            "reason": "InternalError",
            "code": 500,
        }),
    }
}
