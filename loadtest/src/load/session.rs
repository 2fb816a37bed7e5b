//! A WebSocket session of exec, attach or port-forward whose far end echoes bytes.
//!
//! Kubernetes multiplexes the streams of a session over one WebSocket: the first byte of each message is the channel.

use agentk_core::connect::BoxIo;
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _, future::try_join};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message, protocol::Role},
};

use super::{LoadError, LoadTarget, client::LoadConnection, progress::Counter};

/// The maximum size of one message, as in kubectl.
const PIECE: usize = 32 * 1024;
/// The size limit of the response head, in bytes.
const HEAD: usize = 16 * 1024;
/// The number of characters of a session's error message that are reported.
const REASON: usize = 200;
/// The channel for input in both kinds of sessions.
const IN: u8 = 0;

/// An open session whose far end echoes its input.
pub struct Session {
    socket: WebSocketStream<BoxIo>,
    channels: Channels,
    piece: Bytes,
    received: Counter,
}

/// The channels of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Channels {
    /// The channel of the echo.
    out: u8,
    /// The channel of the error message.
    error: u8,
    /// Channels whose first message is the port number.
    numbered: u8,
}

/// Stdin, stdout and the exit status of a command (`v5.channel.k8s.io`).
const COMMAND: Channels = Channels { out: 1, error: 3, numbered: 0 };
/// Data and errors of one forwarded port (`v4.channel.k8s.io`). Both channels begin with the port number.
const PORT: Channels = Channels { out: 0, error: 1, numbered: 2 };

impl Session {
    /// Dials the target and sends the upgrade request.
    pub async fn open(target: &LoadTarget, request: &[u8], received: Counter) -> Result<Self, LoadError> {
        let mut connection = LoadConnection::open(target, HEAD, Counter::default()).await?;
        connection.send(request).await?;
        let head = connection.head().await?;
        if head.status != 101 {
            return Err(LoadError::NotUpgraded(head.status));
        }
        let (io, beginning) = connection.into_parts();
        let socket = WebSocketStream::from_partially_read(io, beginning, Role::Client, None).await;
        let mut piece = BytesMut::zeroed(1 + PIECE);
        piece[1..].fill(b'x');
        piece[0] = IN;
        let channels = Channels::of(target.name());
        let mut session = Self { socket, channels, piece: piece.freeze(), received };
        for _ in 0..channels.numbered {
            next(&mut session.socket).await?;
        }
        Ok(session)
    }

    /// Sends `bytes` bytes and receives as many.
    pub async fn echo(&mut self, bytes: usize) -> Result<(), LoadError> {
        let (mut sink, mut stream) = (&mut self.socket).split();
        let sending = async {
            let mut left = bytes;
            while left > 0 {
                let length = left.min(PIECE);
                sink.send(Message::Binary(self.piece.slice(..=length))).await?;
                left -= length;
            }
            Ok(())
        };
        let receiving = async {
            let mut back = 0;
            while back < bytes {
                let (channel, data) = next(&mut stream).await?;
                if channel == self.channels.error && !data.is_empty() {
                    return Err(LoadError::Session(reason(&data)));
                }
                if channel == self.channels.out {
                    back += data.len();
                    self.received.received(data.len() as u64);
                }
            }
            if back > bytes {
                return Err(LoadError::Session("more came back than was sent: this is no echo".to_owned()));
            }
            Ok(())
        };
        try_join(sending, receiving).await.map(drop)
    }
}

impl Channels {
    fn of(url: &str) -> Self {
        if is_port_forward(url) { PORT } else { COMMAND }
    }
}

/// Returns whether a URL names the port-forward endpoint of a pod.
pub fn is_port_forward(url: &str) -> bool {
    url.split('?').next().is_some_and(|path| path.ends_with("/portforward"))
}

/// Returns the channel and the payload of the next message.
async fn next(
    messages: &mut (impl futures_util::Stream<Item = Result<Message, Error>> + Unpin),
) -> Result<(u8, Bytes), LoadError> {
    loop {
        let mut data = match messages.next().await {
            Some(Ok(Message::Binary(data))) => data,
            Some(Ok(Message::Text(text))) => text.into(),
            Some(Ok(Message::Close(_))) | None => return Err(LoadError::Closed),
            Some(Ok(_)) => continue,
            Some(Err(error)) => return Err(error.into()),
        };
        if !data.is_empty() {
            let rest = data.split_off(1);
            return Ok((data[0], rest));
        }
    }
}

/// Returns the message as one line.
fn reason(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let plain = said.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(REASON).collect()
}

impl From<Error> for LoadError {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => error.into(),
            Error::ConnectionClosed | Error::AlreadyClosed => Self::Closed,
            error => Self::Session(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_depend_on_the_path() {
        let pod = "https://kas/agents/a/kubernetes/api/v1/namespaces/demo/pods/web";
        assert_eq!(Channels::of(&format!("{pod}/portforward?ports=80")), PORT);
        assert_eq!(Channels::of(&format!("{pod}/exec?command=cat&stdin=true&stdout=true")), COMMAND);
        assert_eq!(Channels::of(&format!("{pod}/exec?command=/portforward")), COMMAND);
    }

    #[test]
    fn session_error_is_one_short_line() {
        assert_eq!(reason(b" no such\r\nprogram\n"), "no such  program");
        assert_eq!(reason(&[b'x'; 1000]).len(), REASON);
    }
}
