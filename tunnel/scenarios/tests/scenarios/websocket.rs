//! `WebSocket` against tokio-tungstenite, in both roles.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role as TheirRole},
};
use tunnel::websocket::{Role, WebSocket};

async fn ends(role: Role) -> (WebSocket<tokio::io::DuplexStream>, WebSocketStream<tokio::io::DuplexStream>) {
    let (ours, theirs) = tokio::io::duplex(4096);
    let their_role = match role {
        Role::Client => TheirRole::Server,
        Role::Server => TheirRole::Client,
    };
    (
        WebSocket::new(ours, Bytes::new(), role),
        WebSocketStream::from_raw_socket(theirs, their_role, None).await,
    )
}

#[tokio::test]
async fn bytes_of_any_message_size_arrive_in_both_directions() {
    for role in [Role::Client, Role::Server] {
        let (ours, theirs) = ends(role).await;
        let payload: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        let expected = payload.clone();
        let (mut sink, mut stream) = theirs.split();
        let (mut reader, mut writer) = tokio::io::split(ours);

        let send = async {
            for size in [1, 125, 126, 65_535, 65_536, 100_000] {
                let rest = &expected[..size];
                sink.send(Message::binary(rest.to_vec())).await.unwrap();
                sink.send(Message::Ping(Bytes::from_static(b"there?"))).await.unwrap();
            }
        };
        let read = async {
            for size in [1, 125, 126, 65_535, 65_536, 100_000] {
                let mut bytes = vec![0; size];
                reader.read_exact(&mut bytes).await.unwrap();
                assert!(bytes == payload[..size], "{size} bytes as {role:?}");
            }
        };
        let write = async {
            for chunk in payload.chunks(70_001) {
                writer.write_all(chunk).await.unwrap();
                writer.flush().await.unwrap();
            }
            writer.shutdown().await.unwrap();
        };
        let receive = async {
            let (mut received, mut pongs, mut closed) = (Vec::new(), 0, false);
            while let Some(message) = stream.next().await {
                match message.unwrap() {
                    Message::Binary(bytes) => received.extend_from_slice(&bytes),
                    Message::Pong(_) => pongs += 1,
                    Message::Close(_) => closed = true,
                    other => panic!("{other:?}"),
                }
            }
            assert!(received == expected, "as {role:?}");
            assert!(pongs > 0, "pings are answered");
            assert!(closed, "a close frame is sent");
        };
        tokio::join!(send, read, async { tokio::join!(write, receive) });
    }
}

#[tokio::test]
async fn close_frame_ends_the_stream_and_is_answered() {
    let (mut ours, mut theirs) = ends(Role::Client).await;
    theirs.send(Message::binary(b"last words".to_vec())).await.unwrap();
    theirs.close(None).await.unwrap();

    let mut received = Vec::new();
    ours.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"last words");
    assert!(matches!(theirs.next().await, Some(Ok(Message::Close(_)))));
}

#[tokio::test]
async fn text_message_is_refused() {
    let (mut ours, mut theirs) = ends(Role::Server).await;
    theirs.send(Message::text("hello")).await.unwrap();
    let error = ours.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}
