//! A session of exec, attach or port-forward that stays: what is sent in comes back, and is measured.
//!
//! Kubernetes gives the streams of a session channels of one WebSocket; the first byte of each message is the channel.

use agent::connect::BoxIo;
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _, future::try_join};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message, protocol::Role},
};

use super::{Failure, Target, client::Connection, progress::Counter};

/// The most that is sent in one message, as by kubectl.
const PIECE: usize = 32 * 1024;
/// For the head of the answer.
const HEAD: usize = 16 * 1024;
/// Characters of what a session says of its end that are repeated.
const REASON: usize = 200;
/// Where both kinds of sessions take bytes.
const IN: u8 = 0;

/// An open one, of something that sends back what it gets.
pub struct Session {
    socket: WebSocketStream<BoxIo>,
    channels: Channels,
    piece: Bytes,
    received: Counter,
}

/// Which channel is what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Channels {
    /// Where bytes come back.
    out: u8,
    /// Where it says why it failed.
    error: u8,
    /// Channels whose first message is a number of the port, and not said by anybody.
    numbered: u8,
}

/// Of stdin, stdout and the status of a command; stderr between them is nobody's concern.
const COMMAND: Channels = Channels { out: 1, error: 3, numbered: 0 };
/// Of one port; the numbers are on both.
const PORT: Channels = Channels { out: 0, error: 1, numbered: 2 };

impl Session {
    /// Dials the target and sends a request that asks for the upgrade.
    pub async fn open(target: &Target, request: &[u8], received: Counter) -> Result<Self, Failure> {
        let mut connection = Connection::open(target, HEAD, Counter::default()).await?;
        connection.send(request).await?;
        let head = connection.head().await?;
        if head.status != 101 {
            return Err(Failure::NotUpgraded(head.status));
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

    /// Sends so many bytes, and takes what comes back until it is as many.
    pub async fn echo(&mut self, bytes: usize) -> Result<(), Failure> {
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
                    return Err(Failure::Session(reason(&data)));
                }
                if channel == self.channels.out {
                    back += data.len();
                    self.received.received(data.len() as u64);
                }
            }
            if back > bytes {
                return Err(Failure::Session("more came back than was sent: this is no echo".to_owned()));
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

/// Whether a URL is that of a pod's ports, and not of a command.
pub fn is_port_forward(url: &str) -> bool {
    url.split('?').next().is_some_and(|path| path.ends_with("/portforward"))
}

/// The next message's channel, and what it carries.
async fn next(
    messages: &mut (impl futures_util::Stream<Item = Result<Message, Error>> + Unpin),
) -> Result<(u8, Bytes), Failure> {
    loop {
        let mut data = match messages.next().await {
            Some(Ok(Message::Binary(data))) => data,
            Some(Ok(Message::Text(text))) => text.into(),
            Some(Ok(Message::Close(_))) | None => return Err(Failure::Closed),
            Some(Ok(_)) => continue,
            Some(Err(error)) => return Err(error.into()),
        };
        if !data.is_empty() {
            let rest = data.split_off(1);
            return Ok((data[0], rest));
        }
    }
}

/// In one line.
fn reason(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let plain = said.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(REASON).collect()
}

impl From<Error> for Failure {
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
    fn a_path_says_which_channels_there_are() {
        let pod = "https://kas/agents/a/kubernetes/api/v1/namespaces/demo/pods/web";
        assert_eq!(Channels::of(&format!("{pod}/portforward?ports=80")), PORT);
        assert_eq!(Channels::of(&format!("{pod}/exec?command=cat&stdin=true&stdout=true")), COMMAND);
        assert_eq!(Channels::of(&format!("{pod}/exec?command=/portforward")), COMMAND);
    }

    #[test]
    fn why_a_session_failed_is_one_short_line() {
        assert_eq!(reason(b" no such\r\nprogram\n"), "no such  program");
        assert_eq!(reason(&[b'x'; 1000]).len(), REASON);
    }
}
